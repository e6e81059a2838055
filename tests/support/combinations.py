"""What `make test` leaves out, because what it runs covers its parts. `make test-combinations` runs all.

All cases together took over nine minutes of two cores; a machine that is slow that day went beyond CI's twelve.
"""

import os
import re

ALL = bool(os.environ.get("CMLMCSE_ALL_COMBINATIONS"))

NONE = "(?!)"  # a pattern of no case

# A test → the cases that run, as a pattern of the part of their names in brackets.
CASES = {
    "tests/adaptation/test_adapt.py::test_what_is_handed_back_was_trained_on_two_splits": "two",
    "tests/adaptation/test_rules.py::test_no_arm_confirms_itself": "(title_body|search|words|words.sentence)-.*",
    "tests/commands/encode/test_encode.py::test_command": "10-.*",
    "tests/commands/encode/test_encode_in_parts.py::test_two_machines": NONE,  # training on two machines starts alike
    "tests/commands/test_sentence_transformers.py::test_an_adapter": "cmlm-adapter|rtd-loss",
    "tests/commands/test_sentence_transformers.py::test_callbacks": "rtd",
    "tests/commands/test_sentence_transformers.py::test_no_duplicates": "cmlm-2|retromae-1",
    "tests/commands/test_sentence_transformers.py::test_the_same_loss_and_gradients_as_our_training":
        "cmlm-.*|.*-(roberta|modernbert)",
    "tests/commands/test_sentence_transformers.py::test_trains_and_saves": "cmlm|retromae",
    "tests/model/test_auxiliary.py::test_encoder_mlm_with_the_embeddings_as_decoder": "roberta|electra|modernbert",
    "tests/model/test_auxiliary.py::test_rtd_equals_an_independent_computation":
        "True-.*-(bert|roberta|modernbert)|False-masked-(distilbert|mpnet)|False-all-(bert|electra|modernbert)",
    "tests/model/test_backbones.py::test_training_lowers_the_loss": "mpnet|modernbert",
    "tests/model/test_conditional_mlm.py::test_losses_equal_an_independent_computation":
        "None-.*|0-(bert|roberta|modernbert)",
    "tests/model/test_condenser.py::test_it_equals_an_independent_computation":
        "cls_before_pooler-(bert|roberta|modernbert)|avg-(electra|distilbert|mpnet|modernbert)",
    "tests/model/test_contract.py::test_forward_is_one_graph": "modernbert",
    "tests/model/test_parity.py::test_padded_batch": "cls_before_pooler-.*|avg_first_last-.*|.*-(bert|modernbert)",
    "tests/project/test_benchmarks.py::test_compiled_arms": NONE,
    "tests/training/test_combinations.py::test_an_option_beside_an_objective":  # two or more of each option and each
        "negated prompt-(cmlm|rtd)|dimensions-(rtd|retromae)|consistency-(mlm|denosent)|teacher-(cmlm|condenser)|"
        "mined negatives-(cmlm|retromae)|mined, no dropout-(rtd|mlm)|nested-(condenser|denosent)|"
        "scored pairs-(mlm|cmlm)",
    "tests/training/test_filler.py::test_loss_and_gradients_are_those_without": ".*-whole|bert-(simcse|cmlm|rtd)-parts",
    "tests/training/test_large_batch.py::test_equals_the_whole_batch":
        "weights[05]-mlp-2-before_head|weights[1234]-batchnorm-2-after_head|weights[23]-mlp-1-after_head",
    "tests/training/test_launched.py::test_fsdp_goes_on_in_bf16": NONE,  # from a checkpoint, as on two machines
    "tests/training/test_launched.py::test_resume_on_two_processes": "False",
    "tests/training/test_resume.py::test_every_method":
        "(?!(simcse with mlm|cmlm-cse|diffcse|rtd and cmlm|retromae|mined pieces|accumulated)$).*",
    "tests/training/test_teachers.py::test_regression_on_the_cosines": "scored pairs|documents",
    "tests/training/test_train.py::test_clear": "False",
    "tests/training/test_train.py::test_mini_batches_change_nothing": "2",
    "tests/training/test_train.py::test_smoke_run": "roberta",
    "tests/training/test_train.py::test_triplets": "0.1",
    "tests/training/test_without_waiting.py::test_a_step":
        # in two processes the first seven run whole
        "(?!(simcse|infocse|diffcse|simcse[+]{2}|teacher|mined negatives|scored pairs)-).*-whole|"
        "(simcse|infocse|diffcse|retromae|simcse[+]{2}|teacher|negated prompt|mined negatives)-parts",
    "tests/training/test_without_waiting.py::test_a_step_without_values":
        "(bert|modernbert)-.*|(roberta|mpnet)-.*-None|distilbert-.*-flash",
}  # fmt: skip


def left_out(name: str) -> bool:
    """Whether `make test` leaves out this case, by the test's whole name with the case in brackets."""
    test, _, case = name.removesuffix("]").partition("[")
    return not ALL and test in CASES and re.fullmatch(CASES[test], case) is None
