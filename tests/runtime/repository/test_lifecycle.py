# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The lifecycle table: served versions, the index, and refusals, after any legal steps."""

import pytest

from pyruntime.runtime.repository.lifecycle import LATEST, NEXT, IndexRow, LifecycleTable, State, Step
from pyruntime.utils.errors import Code, InferenceError, LocalError

# Steps that lead version 1 of "m" to each state.
PATHS = {
    State.UNKNOWN: [],
    State.LOADING: [Step.BEGIN_LOAD],
    State.READY: [Step.BEGIN_LOAD, Step.READY],
    State.RELOADING: [Step.BEGIN_LOAD, Step.READY, Step.BEGIN_LOAD],
    State.UNLOADING: [Step.BEGIN_LOAD, Step.READY, Step.BEGIN_UNLOAD],
    State.UNAVAILABLE: [Step.BEGIN_LOAD, Step.FAIL],
}


def perform(table, step, version=1, handle="old"):
    match step:
        case Step.BEGIN_LOAD:
            return table.begin_load("m", version)
        case Step.READY:
            return table.ready("m", version, handle)
        case Step.FAIL:
            return table.fail("m", version, "it is broken")
        case Step.BEGIN_UNLOAD:
            return table.begin_unload("m", version)
        case Step.UNLOADED:
            return table.unloaded("m", version)
        case Step.RECOVER:
            return table.recover("m", version, handle)


def table_in(state):
    """A table in which version 1 of "m" is in a state, and served by "old" if at all."""
    table = LifecycleTable()
    for step in PATHS[state]:
        perform(table, step)
    return table


def serving(**versions):
    """A table in which these versions of "m" are ready, served by the objects given."""
    table = LifecycleTable()
    for version, handle in versions.items():
        table.begin_load("m", int(version[1:]))
        table.ready("m", int(version[1:]), handle)
    return table


def refusal(table, *request):
    with pytest.raises(InferenceError) as caught:
        table.resolve(*request)
    return caught.value.message, caught.value.code


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("step", Step)
def test_the_table_is_the_law(state, step):
    """In every state, a step of the table leads where it says, and any other is refused and changes nothing."""
    table = table_in(state)
    before = table.states("m")
    assert before.get(1, State.UNKNOWN) is state
    expected = NEXT.get((state, step))
    if expected is None:
        with pytest.raises(LocalError, match=f"^{step.name} is not legal while version 1 of model 'm' is {state.name}"):
            perform(table, step)
        assert table.states("m") == before
    else:
        perform(table, step)
        assert table.states("m") == {1: expected}


class TestResolve:
    def test_a_version(self):
        """A request for a version goes to what serves it."""
        table = serving(v1="one", v2="two")
        assert table.resolve("m", 1) == "one"
        assert table.resolve("m", 2) == "two"

    def test_any_version_is_the_highest(self):
        """Without a version, the highest ready one serves, whichever was loaded last."""
        table = serving(v10="ten", v9="nine")
        assert table.resolve("m") == table.resolve("m", -1) == "ten"
        table.begin_unload("m", 10)
        assert table.resolve("m") == "nine"

    def test_a_change_is_told(self):
        """Whenever requests go elsewhere from then on, and at no other time."""
        found = []
        table = LifecycleTable(lambda: found.append(table.ready_versions("m")))
        table.begin_load("m", 1)
        assert found == []
        table.ready("m", 1, "one")
        table.begin_load("m", 1)
        table.fail("m", 1, "it is broken")
        assert found == [(1,)]
        table.begin_unload("m", 1)
        table.unloaded("m", 1)
        assert found == [(1,), ()]

    def test_an_unknown_model(self):
        """A model that was never loaded is unknown, even if it is in the repository."""
        table = LifecycleTable()
        table.set_repository(["m"])
        assert refusal(table, "m") == ("Request for unknown model: 'm' is not found", Code.NOT_FOUND)
        assert refusal(table, "m", 1) == ("Request for unknown model: 'm' is not found", Code.NOT_FOUND)

    def test_an_unknown_version(self):
        """A version that was never there."""
        message = "Request for unknown model: 'm' version 7 is not found"
        assert refusal(serving(v1="one"), "m", 7) == (message, Code.NOT_FOUND)

    @pytest.mark.parametrize("version", [LATEST, 1])
    @pytest.mark.parametrize("steps", [[], [Step.BEGIN_LOAD]])
    def test_a_version_whose_instances_are_down_is_unavailable_with_the_reason(self, version, steps):
        table = table_in(State.READY)
        table.fail("m", 1, "it died\nand more")
        table.down["m", 1] = "old"
        for step in steps:
            perform(table, step)
        reason = "its instances are down" if steps else "it died"
        message = f"Model 'm' version 1 is not available: {reason}"
        assert refusal(table, "m", version) == (message, Code.UNAVAILABLE)

    def test_a_model_that_failed_to_load_says_why_in_one_line(self):
        why = (
            ", because it failed to load: no weights in 'a.bin' of https://host/a/b "
            "(the repository index and the server's log have more)"
        )
        table = table_in(State.LOADING)
        table.fail("m", 1, "no weights in '/srv/models/m/1/a.bin' of https://host/a/b\nAt: model.py")
        unknown = "Request for unknown model: 'm'"
        assert refusal(table, "m") == (f"{unknown} has no available versions{why}", Code.NOT_FOUND)
        assert refusal(table, "m", 1) == (f"{unknown} version 1 is not at ready state{why}", Code.UNAVAILABLE)
        assert refusal(table, "m", 2) == (f"{unknown} version 2 is not found", Code.NOT_FOUND)
        table = LifecycleTable()
        table.fail_model("m", "no backend")
        message, code = refusal(table, "m")
        assert message.startswith(f"{unknown} is not found, because it failed to load: no backend (")
        assert code is Code.NOT_FOUND

    def test_a_model_that_was_unloaded_gives_no_reason(self):
        table = table_in(State.UNLOADING)
        table.unloaded("m", 1)
        message = "Request for unknown model: 'm' has no available versions"
        assert refusal(table, "m") == (message, Code.NOT_FOUND)

    @pytest.mark.parametrize("state", [State.LOADING, State.UNLOADING])
    def test_not_ready(self, state):
        """A version that is known and not ready may be so later."""
        message = "Request for unknown model: 'm' version 1 is not at ready state"
        assert refusal(table_in(state), "m", 1) == (message, Code.UNAVAILABLE)
        message = "Request for unknown model: 'm' has no available versions"
        assert refusal(table_in(state), "m") == (message, Code.NOT_FOUND)


class TestHandles:
    def test_the_first_load_replaces_nothing(self):
        """The first load has no version to drain."""
        assert perform(table_in(State.LOADING), Step.READY) is None

    def test_a_reload_serves_the_old_until_the_new_is_ready(self):
        """The old one serves during the load, and is handed back to be drained after it."""
        table = table_in(State.RELOADING)
        assert table.resolve("m") == table.resolve("m", 1) == "old"
        assert table.ready("m", 1, "new") == "old"
        assert table.resolve("m") == table.resolve("m", 1) == "new"

    def test_a_failed_reload_keeps_the_old(self):
        """The old version is not drained, and the failure leaves no trace."""
        table = table_in(State.RELOADING)
        assert table.fail("m", 1, "it is broken") is None
        assert table.resolve("m") == "old"
        assert table.index() == [IndexRow("m", "1", "READY", "")]

    def test_losing_all_instances(self):
        """A version that was ready and failed serves no more; what served is handed back."""
        table = table_in(State.READY)
        assert table.fail("m", 1, "it is broken") == "old"
        assert table.ready_versions("m") == ()
        assert table.index() == [IndexRow("m", "1", "UNAVAILABLE", "it is broken")]

    def test_unloading(self):
        """The version that served is returned, so that it can be drained; a failed version has none."""
        assert table_in(State.READY).begin_unload("m", 1) == "old"
        assert table_in(State.UNAVAILABLE).begin_unload("m", 1) is None

    def test_the_versions_that_serve(self):
        """In order of number, and with those that are being loaded anew."""
        table = serving(v10="ten", v9="nine", v1="one")
        table.begin_load("m", 9)
        table.begin_unload("m", 1)
        assert table.ready_versions("m") == (9, 10)
        assert [table.ready_versions("m", version) for version in (9, 8)] == [(9,), ()]
        assert table.ready_versions("other") == ()


class TestIndex:
    def test_models_that_were_never_loaded_have_a_name_only(self):
        """The index has every model of the repositories, in order, and every loaded model."""
        table = serving(v2="two", v10="ten")
        table.set_repository(["z", "a"])
        rows = [IndexRow("a"), IndexRow("m", "2", "READY"), IndexRow("m", "10", "READY"), IndexRow("z")]
        assert table.index() == rows

    @pytest.mark.parametrize(
        ("state", "shown", "reason"),
        [
            (State.LOADING, "LOADING", ""),
            (State.RELOADING, "READY", ""),
            (State.UNLOADING, "UNLOADING", ""),
            (State.UNAVAILABLE, "UNAVAILABLE", "it is broken"),
        ],
    )
    def test_states_and_reasons(self, state, shown, reason):
        """A version that is being loaded anew is shown as ready, since it is."""
        assert table_in(state).index() == [IndexRow("m", "1", shown, reason)]

    def test_unloaded(self):
        """A version that was unloaded says so."""
        table = table_in(State.UNLOADING)
        table.unloaded("m", 1)
        assert table.index() == [IndexRow("m", "1", "UNAVAILABLE", "unloaded")]

    def test_a_new_load_forgets_the_old_reason(self):
        """The reason is of the present state."""
        table = table_in(State.UNAVAILABLE)
        table.begin_load("m", 1)
        assert table.index() == [IndexRow("m", "1", "LOADING", "")]


class TestModelsThatFailAsAWhole:
    """A broken configuration, say: the load ends before any version has taken a step."""

    def test_shown_without_version(self):
        """The row says why; requests find no such model."""
        table = LifecycleTable()
        table.fail_model("m", "bad configuration")
        assert table.index() == [IndexRow("m", "", "UNAVAILABLE", "bad configuration")]
        assert refusal(table, "m")[1] is Code.NOT_FOUND
        assert not table.is_ready(strict=True)

    def test_shown_beside_its_versions(self):
        """Versions of earlier loads have their rows too."""
        table = table_in(State.UNAVAILABLE)
        table.fail_model("m", "bad configuration")
        assert [row.reason for row in table.index()] == ["bad configuration", "it is broken"]

    def test_a_failed_reload_does_not_matter_to_what_serves(self):
        """While a version serves, the model is as ready as it was; the index says that it is an older one, and why."""
        table = table_in(State.READY)
        table.fail_model("m", "bad configuration")
        reason = "an older configuration serves, because the latest failed to load: bad configuration"
        assert table.index() == [IndexRow("m", "1", "READY", reason)]
        assert table.is_ready(strict=True)

    def test_forgotten_with_the_next_step(self):
        """A later load that comes to the versions, or an unload, ends it."""
        table = LifecycleTable()
        table.fail_model("m", "bad configuration")
        table.begin_load("m", 1)
        assert table.index() == [IndexRow("m", "1", "LOADING")]
        table.fail_model("other", "bad configuration")
        table.dismiss("other")
        table.dismiss("never seen")
        assert len(table.index()) == 1


class TestServerReady:
    @pytest.mark.parametrize("state", State)
    def test_strictly(self, state):
        """Every version that was loaded has to serve."""
        assert table_in(state).is_ready(strict=True) is (state in (State.UNKNOWN, State.READY, State.RELOADING))

    @pytest.mark.parametrize("state", State)
    def test_not_strictly(self, state):
        """Models do not matter."""
        assert table_in(state).is_ready(strict=False)

    def test_unloaded_versions_do_not_count(self):
        """A version that was unloaded, even after it failed, does not affect readiness."""
        table = table_in(State.UNAVAILABLE)
        table.begin_unload("m", 1)
        table.unloaded("m", 1)
        assert table.is_ready(strict=True)

    def test_models_that_were_never_loaded_do_not_count(self):
        """They need not be loaded."""
        table = LifecycleTable()
        table.set_repository(["m"])
        assert table.is_ready(strict=True)


def test_repr_says_how_much_is_ready():
    """The repr for log lines."""
    table = serving(v1="one", v2="two")
    table.begin_load("m", 3)
    assert repr(table) == "<LifecycleTable [3 versions, 2 ready]>"
