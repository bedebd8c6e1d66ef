"""What int8 tables change in the answers, against answers of a folder whose tables really went through int8."""

import shutil

import pytest

from clefquant.errors import InputError
from clefquant.export.table_effect import int8_tables, table_effect
from clefquant.export.tables import TABLES, shrink_tables
from clefquant.release.load import option_logits
from clefquant.verify.simulated import load_simulated

from ..verify.conftest import records, write_set


@pytest.fixture(scope="module")
def evaluation(tiny_loaded, tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("sets") / "evaluation", tiny_loaded, records(4))


def _probabilities(loaded, encoded) -> list:
    answers = dict(option_logits(loaded, encoded))
    found = [logits.double().log_softmax(-1) for index in sorted(answers) for logits in answers[index]]
    return [answer for answer in found if len(answer) > 1]


def test_it_is_the_change_between_the_folder_and_its_int8_form(tiny, tiny_loaded, evaluation, tmp_path):
    effect = table_effect(tiny.path, evaluation)
    encoded = [tiny_loaded.code.encode_record(tiny_loaded.processor.tokenizer, record) for record in records(4)]
    before = _probabilities(tiny_loaded, encoded)
    with load_simulated(shrink_tables(tiny.path, tmp_path / "int8").path) as shrunk:
        after = _probabilities(shrunk, encoded)
    pairs = list(zip(before, after, strict=True))
    kl = sum(float((p.exp() * (p - q)).sum()) for p, q in pairs) / len(pairs)
    assert effect.questions == len(pairs) == 12
    assert effect.kl == pytest.approx(kl, rel=1e-6, abs=1e-12)
    assert effect.kl > 0
    assert effect.max_difference == pytest.approx(max(float((p.exp() - q.exp()).abs().max()) for p, q in pairs))
    assert effect.agreement == sum(bool(p.argmax() == q.argmax()) for p, q in pairs) / len(pairs)


def test_a_quantized_checkpoint_is_answered_with_its_own_weights(mixed, evaluation):
    effect = table_effect(mixed, evaluation)
    assert effect.questions == 12
    assert 0 <= effect.kl < 0.1


def test_the_very_same_tables_are_put_back(tiny_loaded):
    modules = [tiny_loaded.module(name.removesuffix(".weight")) for name in TABLES.values()]
    before = [module.weight for module in modules]
    with pytest.raises(KeyboardInterrupt), int8_tables(tiny_loaded):
        assert all(module.weight is not weight for module, weight in zip(modules, before, strict=True))
        raise KeyboardInterrupt
    assert all(module.weight is weight for module, weight in zip(modules, before, strict=True))


def test_a_set_without_a_choice_is_refused(tiny, tiny_loaded, tmp_path):
    only = {"state": "x", "questions": {"late": {"type": "choice", "criteria": {"true": "one option"}}}}
    with pytest.raises(InputError, match="two or more options"):
        table_effect(tiny.path, write_set(tmp_path / "only", tiny_loaded, [only]))


def test_a_set_of_another_tokenizer_is_refused(tiny, evaluation, tmp_path):
    other = shutil.copytree(tiny.path, tmp_path / "other")
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + "\n")
    with pytest.raises(InputError):
        table_effect(other, evaluation)
