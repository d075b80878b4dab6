# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.tracing.sampling import GLOBAL, Layers, Sampler, Values

ON = ("TIMESTAMPS",)


def values(levels=ON, rate=1, count=-1, log_frequency=0):
    return Values(levels, rate, count, log_frequency)


def picks(sampler, requests):
    return [number for number in range(1, requests + 1) if sampler.pick()]


class TestSampler:
    def test_rate(self):
        """Of three requests the third is picked."""
        assert picks(Sampler(values(rate=3)), 10) == [3, 6, 9]

    def test_every_request(self):
        """With a rate of 1 each is."""
        assert picks(Sampler(values()), 3) == [1, 2, 3]

    def test_off(self):
        """Without a level none is, nor may one be forced."""
        sampler = Sampler(values(levels=()))
        assert (picks(sampler, 3), sampler.force(), sampler.is_on, sampler.under_way) == ([], False, False, 0)

    def test_count(self):
        """Only those that are picked count, and once there were so many no other one is."""
        sampler = Sampler(values(rate=2, count=2))
        assert sampler.is_on
        assert picks(sampler, 3) == [2]
        assert sampler.left == 1
        assert picks(sampler, 9) == [1]
        assert (sampler.left, sampler.is_on, sampler.under_way) == (0, False, 2)

    def test_forced(self):
        """One that a client traces itself counts for nothing."""
        sampler = Sampler(values(rate=1000, count=0))
        assert sampler.force()
        assert (sampler.left, sampler.under_way) == (0, 1)
        assert picks(sampler, 1000) == []

    @pytest.mark.parametrize(
        ("levels", "timestamps", "tensors"), [((), False, False), (ON, True, False), (("TENSORS",), False, True)]
    )
    def test_levels(self, levels, timestamps, tensors):
        """A sampler says what must be noted."""
        sampler = Sampler(values(levels=levels))
        assert (sampler.timestamps, sampler.tensors) == (timestamps, tensors)


class TestLayers:
    def test_shared(self):
        """Models without settings of their own share a count."""
        layers = Layers(values(rate=2))
        assert [layers.sampler("a").pick(), layers.sampler("b").pick()] == [False, True]

    def test_global_change(self):
        """A global change holds for every model without a value of its own."""
        layers = Layers(values(levels=(), rate=7))
        layers.change(GLOBAL, {"levels": ON, "rate": 2})
        assert layers.sampler("m").values == values(rate=2)
        layers.change(GLOBAL, {"rate": None})
        assert layers.sampler("m").values == values(rate=7)

    def test_model_shadows(self):
        """A model's own value stands, for any global change, until it is cleared; its other values follow."""
        layers = Layers(values(rate=1000))
        layers.change("m", {"rate": 3})
        layers.change(GLOBAL, {"rate": 9, "log_frequency": 4})
        assert layers.sampler("m").values == values(rate=3, log_frequency=4)
        assert layers.sampler("other").values == values(rate=9, log_frequency=4)
        layers.change("m", {"rate": None})
        assert layers.sampler("m").values == values(rate=9, log_frequency=4)
        assert layers.sampler("m") is layers.sampler("other")

    def test_off_for_one_model(self):
        """OFF is a value like any other."""
        layers = Layers(values())
        layers.change("m", {"levels": ()})
        assert not layers.sampler("m").pick()
        assert layers.sampler("other").pick()

    def test_clearing_what_is_not_set(self):
        """It changes nothing."""
        layers = Layers(values())
        layers.change("m", {"rate": None})
        assert layers.sampler("m") is layers.sampler("other")
        assert len(layers.samplers()) == 1

    def test_count_goes_on(self):
        """A count goes on when something else is changed, and begins anew when it is set."""
        layers = Layers(values(count=3))
        assert layers.sampler("m").pick()
        layers.change(GLOBAL, {"rate": 1})
        assert layers.sampler("m").left == 2
        layers.change(GLOBAL, {"count": 3})
        assert layers.sampler("m").left == 3
        layers.change(GLOBAL, {"count": 8})
        assert layers.sampler("m").left == 8

    def test_count_of_a_model(self):
        """Setting the count for all leaves that of a model with its own as it is."""
        layers = Layers(values())
        layers.change("m", {"count": 5})
        assert layers.sampler("m").pick()
        layers.change(GLOBAL, {"count": 5})
        assert layers.sampler("m").left == 4

    def test_new_rate_counts_anew(self):
        """Requests that were seen at another rate do not count."""
        layers = Layers(values(rate=3))
        assert picks(layers.sampler("m"), 2) == []
        layers.change(GLOBAL, {"rate": 2})
        assert picks(layers.sampler("m"), 2) == [2]
