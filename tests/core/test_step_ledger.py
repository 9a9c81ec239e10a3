"""Which steps are due, and which epochs still count."""

from __future__ import annotations

from asyncpage.core.step_ledger import FIRST_EPOCH, StepLedger


def test_answers_are_due_in_the_order_of_sending() -> None:
    ledger = StepLedger()
    for number in (1, 2, 3):
        ledger.sent(1, number)
    assert not ledger.answered(1, 2)
    assert [ledger.answered(1, number) for number in (1, 2, 3)] == [True, True, True]
    assert ledger.due() is None
    assert not ledger.answered(1, 3)


def test_a_failed_step_takes_the_rest_of_its_epoch_along_and_nothing_of_the_next() -> None:
    ledger = StepLedger()
    for epoch, number in ((1, 1), (1, 2), (2, 3)):
        ledger.sent(epoch, number)
    ledger.failed(1)
    assert ledger.due() == (2, 3)
    assert [ledger.is_current(epoch) for epoch in (1, 2)] == [False, True]


def test_a_loss_takes_everything_along_and_begins_an_epoch_beyond_any_that_was_used() -> None:
    ledger = StepLedger()
    assert ledger.is_current(FIRST_EPOCH)
    assert ledger.is_current(4)
    ledger.sent(4, 9)
    assert ledger.lost() == 4
    assert (len(ledger), ledger.oldest_epoch) == (0, 5)
    assert [ledger.is_current(epoch) for epoch in (1, 4, 5)] == [False, False, True]


def test_an_epoch_that_was_only_seen_is_lost_as_well() -> None:
    ledger = StepLedger()
    ledger.lost()
    ledger.is_current(7)  # its step was dropped on the way
    assert ledger.lost() == 7
    assert ledger.oldest_epoch == 8
