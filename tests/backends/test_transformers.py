# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "transformers", as far as it needs no framework: parameters, text, and the turns of the engine."""

import asyncio
import json
from contextlib import aclosing, nullcontext
from itertools import pairwise

import pytest

from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.backends.transformers.batch import check_cache
from pyruntime.backends.transformers.detokenizer import HELD_TOKENS_MAX, Detokenizer
from pyruntime.backends.transformers.engine import Engine, Limits
from pyruntime.backends.transformers.options import Options, read_options
from pyruntime.backends.transformers.pipelines import task_of
from pyruntime.backends.transformers.sampling import SamplingParameters, read_sampling
from pyruntime.backends.transformers.sequences import TextSequence
from pyruntime.utils.errors import Code, ConfigError, InferenceError, LoadError


def decode(tokens):
    return bytes(token % 256 for token in tokens).decode("utf-8", "replace")


class TestSampling:
    def test_values(self):
        """Texts of gRPC clients are converted; what is not given has vLLM's default."""
        read = read_sampling({"max_tokens": "7", "temperature": 0, "stop": '["a"]', "logprobs": 0})
        assert read == SamplingParameters(max_tokens=7, temperature=0, stop=["a"], logprobs=0)
        assert (read_sampling({}).max_tokens, read_sampling({}).stops) == (16, [])
        assert read_sampling({"stop": "end"}).stops == ["end"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"max_tokens": 0}, "sampling parameter 'max_tokens' is 0, expected at least 1"),
            ({"temperature": -1}, "'temperature' is -1, expected 0 or more"),
            ({"temperature": float("nan")}, "'temperature' is nan, expected 0 or more"),
            ({"top_p": 0}, "'top_p' is 0, expected above 0 and at most 1"),
            ({"top_k": -2}, "'top_k' is -2, expected the number of tokens"),
            ({"repetition_penalty": 0}, "'repetition_penalty' is 0, expected above 0"),
            ({"min_p": 2}, "'min_p' is 2, expected from 0 to 1"),
            ({"presence_penalty": 3}, "'presence_penalty' is 3, expected from -2 to 2"),
            ({"frequency_penalty": -3}, "'frequency_penalty' is -3, expected from -2 to 2"),
            ({"seed": -1}, "'seed' is -1, expected from 0 to"),
            ({"logprobs": 21}, "'logprobs' is 21, expected from 0 to 20"),
            ({"n": 2}, "'n' is 2, expected 1: send a request for each completion"),
            ({"stop": ""}, "'stop' is '', expected at most 16 texts of 1 to 1024 characters"),
            ({"stop": [1]}, r"'stop' is \[1\], expected str or list\[str\]"),
            ({"stop_token_ids": ["a"]}, r"'stop_token_ids' is \['a'\], expected list\[int\]"),
            ({"max_tokens": True}, "'max_tokens' is True, expected int"),
            ({"ignore_eos": 1}, "'ignore_eos' is 1, expected bool"),
            ({"max_tokens": "x"}, "'max_tokens' is 'x', expected int"),
            ({"lora_name": "x"}, "unknown sampling parameter 'lora_name', known are: frequency_penalty, "),
        ],
    )
    def test_wrong_values(self, given, message):
        """The message names the parameter, its value and what it must be."""
        with pytest.raises(ValueError, match=message):
            read_sampling(given)


class TestText:
    def texts(self, tokens, *stops, prompt=(), keeps_stop=False):
        """The text after each token, and at the end."""
        detokenizer = Detokenizer(decode, prompt, stops, keeps_stop)
        seen = []
        for token in tokens:
            ended = detokenizer.push(token)
            seen.append(detokenizer.text)
            if ended:
                return seen
        detokenizer.finish()
        return [*seen, detokenizer.text]

    def test_characters_of_several_tokens(self):
        """A character is shown when its last byte is there."""
        assert self.texts("a\u20acb".encode()) == ["a", "a", "a", "a\u20ac", "a\u20acb", "a\u20acb"]

    def test_incomplete_characters(self):
        """The end shows what is there; so do bytes that are never a character."""
        assert self.texts(b"a\xe2\x82") == ["a", "a", "a", "a\ufffd"]
        assert self.texts(b"\xff" * (HELD_TOKENS_MAX + 1))[-2] == "\ufffd" * (HELD_TOKENS_MAX + 1)

    def test_the_prompt_is_context(self):
        """The text of a token may depend on the one before it, which may be of the prompt."""
        words = {1: "\u2581a", 2: "\u2581b"}
        detokenizer = Detokenizer(
            lambda ids: "".join(map(words.get, ids)).replace("\u2581", " ").strip(), [1], [], False
        )
        detokenizer.push(2)
        assert detokenizer.text == " b"

    def test_stop_texts(self):
        """The text ends before the first stop text, and shows nothing that may become one."""
        assert self.texts(b"abcdef", "cd") == ["", "a", "ab", "ab"]
        assert self.texts(b"abcdef", "cd", keeps_stop=True)[-1] == "abcd"
        assert self.texts(b"abc", "cd") == ["", "a", "ab", "abc"]
        assert self.texts(b"abcd", "d", "bc") == ["", "a", "a"]


class Rows:
    """A batch whose logits are the last token plus one."""

    def __init__(self, fails_at=()):
        self.log = []
        self.size = 0
        self._fails_at = fails_at

    def prefill(self, tokens, cache, start):
        self.log.append(("prefill", list(tokens), start))
        if "prefill" in self._fails_at:
            raise MemoryError("no room for a prompt")
        return tokens[-1] + 1, "cache"

    def join(self, cache, length):
        self.log.append(("join", length))
        self.size += 1

    def step(self, tokens):
        self.log.append(("step", list(tokens)))
        assert len(tokens) == self.size
        if "step" in self._fails_at:
            raise MemoryError("no room for a token")
        return [token + 1 for token in tokens]

    def keep(self, rows):
        self.log.append(("keep", list(rows)))
        self.size = len(rows)


class Chooses:
    def choose(self, logits, tokens):
        return logits

    def logprobs(self, logits, token, decode):
        raise NotImplementedError


def sequence(*prompt, tokens_max=3, ends=frozenset(), **parameters):
    return TextSequence(
        decode(prompt), list(prompt), SamplingParameters(**parameters), Chooses(), decode, ends, tokens_max
    )


def engine(rows, *, seqs=4, batched=100, queued=10):
    return Engine(rows, Limits(100, seqs, batched, queued), nullcontext)


async def tokens_of(outputs):
    """The tokens of each output, and the reason of the end."""
    found = [output async for output in outputs]
    return [list(each.outputs[0].token_ids) for each in found], found[-1].outputs[0].finish_reason


class TestEngine:
    def test_together(self):
        """Requests are in one batch, each for as long as it needs."""
        rows = Rows()

        async def main():
            running = engine(rows)
            short, long = sequence(10, tokens_max=2), sequence(20, 21, tokens_max=4)
            found = await asyncio.gather(
                tokens_of(running.generate(short, True)), tokens_of(running.generate(long, False))
            )
            running.close()
            return found

        short, long = asyncio.run(main())
        assert short == ([[11], [11, 12]], "length")
        assert long == ([[22, 23, 24, 25]], "length")
        assert [each for each in rows.log if each[0] in ("step", "keep")] == [
            ("step", [11, 22]),
            ("keep", [1]),
            ("step", [23]),
            ("step", [24]),
            ("keep", []),
        ]

    def test_join(self):
        """A request joins while another one runs, and one more waits for its place."""
        rows = Rows()

        async def main():
            running = engine(rows, seqs=2)
            first = running.generate(sequence(10, tokens_max=35), True)
            await anext(first)
            others = [tokens_of(running.generate(sequence(each, tokens_max=2), False)) for each in (50, 70)]
            found = await asyncio.gather(tokens_of(first), *others)
            running.close()
            return found

        (first, _), (second, _), (third, _) = asyncio.run(main())
        assert first[-1] == list(range(11, 46))
        assert (second, third) == ([[51, 52]], [[71, 72]])
        steps = [each[1] for each in rows.log if each[0] == "step"]
        assert max(map(len, steps)) == 2
        assert [each for each in steps if 51 in each or 71 in each] == [each for each in steps if len(each) == 2]

    def test_long_prompts(self):
        """A prompt is read in parts, and the batch goes on between them."""
        rows = Rows()

        async def main():
            running = engine(rows, batched=2)
            first = running.generate(sequence(10, tokens_max=35), True)
            await anext(first)
            found = await asyncio.gather(
                tokens_of(first), tokens_of(running.generate(sequence(1, 2, 3, 4, 5, tokens_max=1), False))
            )
            running.close()
            return found

        _, (second, _) = asyncio.run(main())
        assert second == [[6]]
        parts = [index for index, each in enumerate(rows.log) if each[0] == "prefill" and each[1] != [10]]
        assert [rows.log[index] for index in parts] == [
            ("prefill", [1, 2], 0),
            ("prefill", [3, 4], 2),
            ("prefill", [5], 4),
        ]
        assert all("step" in {each[0] for each in rows.log[a:b]} for a, b in pairwise(parts))

    def test_cancelled(self):
        """A request that is closed leaves the batch before its next token; one that waits never joins."""
        rows = Rows()

        async def main():
            running = engine(rows, seqs=1)
            async with aclosing(running.generate(sequence(10, tokens_max=1000), True)) as leaving:
                await anext(leaving)
                waiting = asyncio.create_task(tokens_of(running.generate(sequence(50), False)))
                await asyncio.sleep(0)  # it begins
                waiting.cancel()
                await asyncio.wait([waiting])
            found = await tokens_of(running.generate(sequence(70), False))
            running.close()
            return found

        assert asyncio.run(main()) == ([[71, 72, 73]], "length")
        assert not [each for each in rows.log if each[0] == "prefill" and each[1] == [50]]

    def test_ends(self):
        """A token that ends texts ends this one; the reason is `stop`. `ignore_eos` goes on."""

        async def main():
            running = engine(Rows())
            found = [
                await tokens_of(running.generate(each, False))
                for each in (
                    sequence(10, ends=frozenset([12])),
                    sequence(10, ends=frozenset([12]), ignore_eos=True),
                    sequence(10, stop_token_ids=[11]),
                    sequence(ord("a"), stop="c"),
                )
            ]
            running.close()
            return found

        assert asyncio.run(main()) == [
            ([[11, 12]], "stop"),
            ([[11, 12, 13]], "length"),
            ([[11]], "stop"),
            ([[ord("b"), ord("c")]], "stop"),
        ]

    @pytest.mark.parametrize("place", ["prefill", "step"])
    def test_failures(self, place):
        """An exception of the model is that of its requests; the engine goes on."""
        rows = Rows({place})

        async def main():
            running = engine(rows)
            with pytest.raises(MemoryError, match="no room"):
                await tokens_of(running.generate(sequence(10), False))
            rows._fails_at = ()
            found = await tokens_of(running.generate(sequence(10), False))
            running.close()
            return found

        assert asyncio.run(main()) == ([[11, 12, 13]], "length")
        assert rows.size == 0

    def test_the_queue_is_bounded(self):
        """A request beyond the limit is refused at once."""

        async def main():
            running = engine(Rows(), seqs=1, queued=1)
            first, second = (running.generate(sequence(10, tokens_max=1000), True) for _ in range(2))
            await anext(first)
            waiting = asyncio.create_task(anext(second))
            await anext(first)
            with pytest.raises(
                InferenceError, match="limit max_num_queued_reqs of the model: try again later"
            ) as error:
                await anext(running.generate(sequence(30), True))
            waiting.cancel()
            await asyncio.wait([waiting])
            await first.aclose()
            running.close()
            return error.value.code

        assert asyncio.run(main()) == Code.UNAVAILABLE


class TestOptions:
    def read(self, folder, content=None):
        if content is not None:
            (folder / "model.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return read_options("m", str(folder))

    def test_folders(self, tmp_path):
        """The version's folder is the model; a name that is no folder in it is an id of a hub."""
        (tmp_path / "weights").mkdir()
        assert self.read(tmp_path) == Options(str(tmp_path), True)
        assert self.read(tmp_path, {"model": "weights", "max_num_seqs": 2}) == Options(
            str(tmp_path / "weights"), True, max_num_seqs=2
        )
        assert self.read(tmp_path, {"model": "org/name", "revision": "1"}) == Options("org/name", False, "1")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "is not valid JSON"),
            ([], "must be a JSON object"),
            ({"max_seqs": 1}, "has the unknown option 'max_seqs' in model.json, known are: model, "),
            ({"max_num_seqs": 0}, "has max_num_seqs 0 in model.json, expected an integer of at least 1"),
            ({"trust_remote_code": "yes"}, "has trust_remote_code 'yes' in model.json, expected true or false"),
        ],
    )
    def test_wrong_options(self, tmp_path, content, message):
        """The message names the option and what it must be."""
        with pytest.raises(ConfigError, match=message):
            self.read(tmp_path, content)

    def test_tasks(self):
        """The parameter names a known task."""
        settings = read_settings({"name": "m", "parameters": {"pipeline": {"string_value": "chat"}}})
        with pytest.raises(ConfigError, match="pipeline 'chat', which must be one of text-generation, text-classifi"):
            task_of(settings)

    def test_caches(self):
        """A model that keeps more than keys and values is refused."""

        class LinearAttentionLayer: ...

        with pytest.raises(LoadError, match="its cache has LinearAttentionLayer, which is no list of keys and values"):
            check_cache("m", [LinearAttentionLayer()])
