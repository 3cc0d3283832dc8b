"""The progress display, in a terminal and in a file."""

from __future__ import annotations

import io

from rich.console import Console

from regard.training import Display

TRAIN = {"event": "train", "step": 1200, "epoch": 3.5, "tokens": 9, "seconds": 1.0, "learning_rate": 0.1}
TRAIN |= {"loss": 2.34567, "gradient_norm": 1.0, "padding": 0.081, "tokens_per_second": 1543.2}


def shown(terminal: bool) -> str:
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=terminal, width=120, highlight=False)) as display:
        display.advance(1100, 0.25, 100.0)
        display.report(TRAIN)
        display.advance(1200, 0.5, 160.0)
        display.report(TRAIN)
        display.report({"event": "evaluate", "step": 1200, "epoch": 3.5, "bleu": 38.61, "[x]": 2})
        display.advance(1201, 0.5, 160.0)
    return text.getvalue()


def test_plain_lines_without_a_terminal() -> None:
    assert shown(terminal=False).splitlines() == [
        "step 1,200 · epoch 3.5 · loss 2.346 · padding 8 % · 1,543 tokens/s",
        "step 1,200 · epoch 3.5 · loss 2.346 · padding 8 % · 1,543 tokens/s · 2 min left",
        "step 1,200 · evaluated: bleu 38.61 · [x] 2",
    ]


def test_a_bar_in_a_terminal() -> None:
    text = shown(terminal=True)
    assert "step 1,201" in text and "loss 2.346 · padding 8 % · 1,543 tokens/s · 2 min left" in text
    assert "evaluated: bleu 38.61" in text


def test_an_evaluation_is_announced_and_counts_in_the_remaining_time() -> None:
    for terminal in (False, True):
        text = io.StringIO()
        with Display(Console(file=text, force_terminal=terminal, width=120, highlight=False)) as display:
            display.unit = "images"
            display.advance(1, 0.0, 0.0)
            display.advance(10, 0.5, 100.0, evaluation=20.0)
            display.report({"event": "train", "step": 10, "epoch": 1.0, "tokens_per_second": 7.0})
            display.advance(10, 0.5, 100.0, evaluation=20.0)
            display.evaluating(0.0)
            display.evaluating(0.25)
        shown = text.getvalue()
        if terminal:  # which shows the last status
            assert "evaluating, 25%" in shown
        else:  # 100 s of training, 20 s of evaluation
            assert shown == "step 10 · epoch 1 · 7 images/s · 2 min left\nstep 10 · evaluating …\n"


def test_the_loss_is_shown_before_the_first_record() -> None:
    text = io.StringIO()
    with Display(Console(file=text, width=120, highlight=False)) as display:
        display.preview(TRAIN)
        display.preview(TRAIN)
    assert text.getvalue().count("loss 2.346") == 1


def test_the_remaining_time_is_unknown_before_the_first_steps() -> None:
    text = io.StringIO()
    with Display(Console(file=text)) as display:
        display.report(TRAIN)
    assert "left" not in text.getvalue()
