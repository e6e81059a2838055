"""What `make test` leaves out, because the cases that it runs cover its parts. `make test-combinations` runs all.

All cases together took ten minutes on two cores. A machine that is slow that day went beyond CI's twelve. The table
names what is left out, so that a new objective, option or backbone runs in every combination until it is named here.
"""

import os
import re

ALL = bool(os.environ.get("CMLMCSE_ALL_COMBINATIONS"))

# A test → the cases that are left out, as a pattern of the part of their names in brackets.
LEFT_OUT = {
    "tests/adaptation/test_adapt.py::test_what_is_handed_back_was_trained_on_two_splits": "one",
    "tests/adaptation/test_rules.py::test_no_arm_confirms_itself":
        "(dropout|crops|neighbours|title_body[+]crops|sentence|title_body[+]words)-.*",
    "tests/commands/encode/test_encode.py::test_command": "2048-.*",
    "tests/commands/test_sentence_transformers.py::test_an_adapter": "cmlm-loss|rtd-adapter|retromae-.*",
    "tests/commands/test_sentence_transformers.py::test_callbacks": "cmlm|retromae",
    "tests/commands/test_sentence_transformers.py::test_no_duplicates": "cmlm-1|rtd-.*|retromae-2",
    "tests/commands/test_sentence_transformers.py::test_the_same_loss_and_gradients_as_our_training":
        "(rtd|retromae)-(bert|distilbert|mpnet)",
    "tests/commands/test_sentence_transformers.py::test_trains_and_saves": "rtd",
    "tests/model/test_auxiliary.py::test_encoder_mlm_with_the_embeddings_as_decoder":
        "bert|xlm-roberta|camembert|distilbert|mpnet",
    "tests/model/test_auxiliary.py::test_rtd_equals_an_independent_computation":
        "True-masked-(xlm-roberta|camembert|electra|distilbert|mpnet)|"
        "False-masked-(bert|roberta|xlm-roberta|camembert|electra|modernbert)|"
        "False-all-(roberta|xlm-roberta|camembert|distilbert|mpnet)",
    "tests/model/test_backbones.py::test_training_lowers_the_loss": "electra|distilbert",
    "tests/model/test_conditional_mlm.py::test_losses_equal_an_independent_computation":
        "0-(xlm-roberta|camembert|electra|distilbert|mpnet)",
    "tests/model/test_condenser.py::test_it_equals_an_independent_computation":
        "cls_before_pooler-(xlm-roberta|camembert|electra|distilbert|mpnet)|avg-(bert|roberta|xlm-roberta|camembert)",
    "tests/model/test_contract.py::test_forward_is_one_graph": "bert|roberta",
    "tests/model/test_parity.py::test_padded_batch":
        "avg(_top2)?-(roberta|xlm-roberta|camembert|electra|distilbert|mpnet)",
    "tests/training/test_combinations.py::test_an_option_beside_an_objective":  # two of each option
        "negated prompt-(mlm|condenser|retromae|denosent)|dimensions-(cmlm|mlm|condenser|denosent)|"
        "consistency-(cmlm|rtd|condenser|retromae)|teacher-(rtd|mlm|retromae|denosent)|"
        "mined negatives-(rtd|mlm|condenser|denosent)|mined, no dropout-(cmlm|condenser|retromae|denosent)|"
        "nested-(cmlm|rtd|mlm|retromae)|scored pairs-(rtd|condenser|retromae|denosent)",
    "tests/training/test_filler.py::test_loss_and_gradients_are_those_without": "(?!bert-(simcse|cmlm|rtd)-).*-parts",
    "tests/training/test_large_batch.py::test_equals_the_whole_batch":
        "weights[05]-(batchnorm-2|mlp-1)-after_head|weights[1234]-mlp-2-before_head|weights[14]-mlp-1-after_head",
    "tests/training/test_launched.py::test_resume_on_two_processes": "True",
    "tests/training/test_resume.py::test_every_method": "simcse with mlm|cmlm-cse|diffcse|rtd and cmlm|mined pieces",
    "tests/training/test_teachers.py::test_regression_on_the_cosines": "pairs",
    "tests/training/test_train.py::test_clear": "True",
    "tests/training/test_train.py::test_mini_batches_change_nothing": "1",
    "tests/training/test_train.py::test_smoke_run": "bert",
    "tests/training/test_train.py::test_triplets": "0",
    "tests/training/test_without_waiting.py::test_a_step":  # whole: those that two processes run whole
        "(simcse|infocse|diffcse|simcse[+]{2}|teacher|mined negatives|scored pairs)-whole|"
        "(clear|cmlm|diffcse, sampled|condenser|consistency|denosent|teacher, list_net|teacher, mse|nested|prompt|"
        "mined, weighted|scored pairs)-parts",
    "tests/training/test_without_waiting.py::test_a_step_without_values":
        "(xlm-roberta|camembert|electra|distilbert)-.*-(None|memory_efficient)|(roberta|mpnet)-.*-memory_efficient",
}  # fmt: skip


def left_out(name: str) -> bool:
    """Whether `make test` leaves out this case, by the test's whole name with the case in brackets."""
    test, _, case = name.removesuffix("]").partition("[")
    return not ALL and test in LEFT_OUT and re.fullmatch(LEFT_OUT[test], case) is not None
