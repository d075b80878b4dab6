# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "transformers" with tiny random models, in this process: pipelines, batches, and choices of tokens."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

from pyruntime.backends.transformers.batch import Batch  # noqa: E402
from pyruntime.backends.transformers.sampler import Sampler  # noqa: E402
from pyruntime.backends.transformers.sampling import SamplingParameters  # noqa: E402
from pyruntime.utils.errors import LoadError  # noqa: E402

from .. import tiny_models  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture
def folder(tmp_path):
    """`folder(**parameters)`: the configuration of a model is written; the path of its version's folder."""

    def write(**parameters):
        (tmp_path / "m" / "1").mkdir(parents=True)
        entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
        lines = [entry.format(*item) for item in parameters.items()]
        (tmp_path / "m" / "config.pbtxt").write_text('backend: "transformers"\n' + "".join(lines))
        return tmp_path / "m" / "1"

    return write


TEXTS = np.array([["hello"], ["a longer text"], ["x"]], object)


def test_text_classification(folder, load_model):
    """All labels with their scores, the most likely one first; the configuration is completed."""
    version = folder(pipeline="text-classification")
    names = {"id2label": {0: "low", 1: "high", 2: "none"}, "label2id": {"low": 0, "high": 1, "none": 2}}
    model = tiny_models.bert("ForSequenceClassification", version, **names)
    loaded = load_model(version.parent)
    assert [(each["name"], each["dims"]) for each in loaded.config["output"]] == [("label", [3]), ("score", [3])]
    answer = loaded.infer({"text_input": TEXTS})
    for row, (text,) in enumerate(TEXTS):
        logits = model(**tiny_models.tokenizer()(text, return_tensors="pt")).logits[0]
        scores = logits.softmax(-1).sort(descending=True)
        assert np.allclose(answer["score"][row], scores.values.detach(), atol=1e-4)
        labels = [model.config.id2label[index].encode() for index in scores.indices.tolist()]
        assert answer["label"][row].tolist() == labels


def test_feature_extraction(folder, load_model):
    """A vector for each text, the mean over its tokens whatever else is in the batch."""
    version = folder(pipeline="feature-extraction")
    model = tiny_models.bert("Model", version)
    vectors = load_model(version.parent).infer({"text_input": TEXTS})["embedding"]
    for row, (text,) in enumerate(TEXTS):
        states = model(**tiny_models.tokenizer()(text, return_tensors="pt")).last_hidden_state[0]
        assert np.allclose(vectors[row], states.mean(0).detach(), atol=1e-4)


@pytest.mark.parametrize(
    ("task", "kind", "texts"),
    [
        ("fill-mask", "ForMaskedLM", ["hell<mask>", "<mask>ello"]),
        ("token-classification", "ForTokenClassification", ["hello", "a longer text"]),
    ],
)
def test_other_pipelines(folder, load_model, task, kind, texts):
    """The result is that of the pipeline, as JSON; the same for one text and for several."""
    version = folder(pipeline=task)
    model = tiny_models.bert(kind, version)
    pipeline = transformers.pipeline(task, model=model, tokenizer=tiny_models.tokenizer())
    loaded = load_model(version.parent)
    both = loaded.infer({"text_input": np.array([[each] for each in texts], object)})["result"]
    alone = loaded.infer({"text_input": np.array([texts[:1]], object)})["result"]
    for text, (result,) in zip([*texts, texts[0]], [*both, *alone], strict=True):
        found, wanted = json.loads(result), pipeline(text)
        assert [list(each) for each in found] == [list(each) for each in wanted]
        assert [each.get("token", each.get("word")) for each in found] == [
            each.get("token", each.get("word")) for each in wanted
        ]


def test_pickles(folder, load_model):
    """A pickle is refused unless the configuration allows it."""
    version = folder()
    model = tiny_models.language_model(version)
    (version / "model.safetensors").unlink()
    torch.save(model.state_dict(), version / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"pytorch_model.bin' is a pickle, .* set the parameter ALLOW_PICKLE to true"):
        load_model(version.parent)
    allowed = 'parameters { key: "ALLOW_PICKLE" value { string_value: "true" } }'
    with (version.parent / "config.pbtxt").open("a") as config:
        config.write(allowed)
    (answer,) = load_model(version.parent).stream({"text_input": np.array(["x"], object)})
    assert answer.error is None


def test_missing_files(folder, load_model):
    """The message says what belongs into the folder."""
    version = folder()
    with pytest.raises(LoadError, match=r"has no config.json in .*: put the files of save_pretrained there, or name"):
        load_model(version.parent)


@pytest.mark.parametrize("task", ["text-classification", "text-generation"])
def test_missing_tokenizers(folder, load_model, task):
    """A tokenizer that transformers makes without files, to which all texts are the same, is refused."""
    version = folder(pipeline=task)
    tiny_models.bert("LMHeadModel" if task == "text-generation" else "ForSequenceClassification", version)
    for path in version.glob("tokenizer*"):
        path.unlink()
    expected = r"^model 'm' has no tokenizer in '.*/m/1': put its files of save_pretrained there, such as tokenizer.js"
    with pytest.raises(LoadError, match=expected):
        load_model(version.parent)
    tiny_models.tokenizer().save_pretrained(version)
    load_model(version.parent)


def test_tokenizers_that_know_few_letters(folder, load_model):
    """A tokenizer that has files may take letters for the same token."""
    version = folder(pipeline="text-classification")
    tiny_models.bert("ForSequenceClassification", version)
    for path in version.glob("tokenizer*"):
        path.unlink()
    (version / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "1", "2")))
    loaded = load_model(version.parent)
    one, letter, other = loaded.infer({"text_input": np.array([["1"], ["a"], ["b"]], object)})["score"].tolist()
    assert one != letter
    assert letter == pytest.approx(other)


def test_windows():
    """Rows of a model whose tokens see a window of those before have the tokens of model.generate."""
    model, tokenizer = tiny_models.windowed_model(), tiny_models.tokenizer()
    batch = Batch(torch, transformers.DynamicCache, model)
    prompts = [tokenizer(prompt).input_ids for prompt in ("hello", "a prompt that is much longer", "x", "w\u00f6rld")]
    found = []
    with torch.inference_mode():
        for prompt in prompts:  # one joins after each step
            logits, cache = batch.prefill(prompt[:2], None, 0)
            if prompt[2:]:
                logits, cache = batch.prefill(prompt[2:], cache, 2)
            batch.join(cache, len(prompt))
            found.append([int(logits.argmax())])
            for row, logits in enumerate(batch.step([tokens[-1] for tokens in found])):
                found[row].append(int(logits.argmax()))
    for prompt, tokens in zip(prompts, found, strict=True):
        wanted = model.generate(torch.tensor([prompt]), max_new_tokens=len(tokens), do_sample=False)
        assert tokens == wanted[0, len(prompt) :].tolist()


class TestSampler:
    LOGITS = torch.tensor([0.0, 3.0, 2.0, 1.0])

    def chosen(self, prompt=(), tokens=(), **given):
        sampler = Sampler(torch, SamplingParameters(seed=7, **given), prompt, "cpu")
        return {sampler.choose(self.LOGITS, tokens) for _ in range(100)}

    def test_choices(self):
        """top_k and top_p leave out the unlikely tokens; a penalty those that were seen."""
        assert self.chosen() == {0, 1, 2, 3}
        assert self.chosen(temperature=0) == self.chosen(top_k=1) == self.chosen(top_p=0.01) == {1}
        assert self.chosen(top_k=2) == self.chosen(top_p=0.8) == {1, 2}
        assert self.chosen([1], temperature=0, repetition_penalty=2.0) == {2}
        assert self.chosen([1], [2], temperature=0, repetition_penalty=4.0) == {3}

    def test_min_p(self):
        """Tokens are left out that are less likely than a part of the most likely one; top_p counts among the rest."""
        assert self.chosen(min_p=0.2) == {1, 2}
        assert self.chosen(min_p=1) == {1}
        # 0.73 of the rest, where token 1 has 0.64 of all.
        assert self.chosen(top_p=0.7) == {1, 2}
        assert self.chosen(top_p=0.7, min_p=0.2) == {1}

    def test_penalties_of_the_text(self):
        """Tokens of the text, and not of the prompt, become less likely: once, or by each occurrence."""
        assert self.chosen([1], presence_penalty=2, temperature=0) == {1}
        assert self.chosen((), [1], presence_penalty=2, temperature=0) == {2}
        assert self.chosen((), [1], frequency_penalty=0.9, temperature=0) == {1}
        assert self.chosen((), [1, 1], frequency_penalty=0.9, temperature=0) == {2}
        assert self.chosen((), [0] * 2, frequency_penalty=-2, temperature=0) == {0}

    def test_logprobs(self):
        """The chosen token is there with its rank, whether it is likely or not."""
        sampler = Sampler(torch, SamplingParameters(logprobs=2), [], "cpu")
        found = sampler.logprobs(self.LOGITS, 3, lambda tokens: str(tokens[0]))
        assert {token: (each.rank, each.decoded_token) for token, each in found.items()} == {
            3: (3, "3"),
            1: (1, "1"),
            2: (2, "2"),
        }
        assert np.isclose(found[1].logprob, float(self.LOGITS.log_softmax(-1)[1]))
