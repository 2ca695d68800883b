"""Turnout's side of the speed benchmark: the same rounds as the peers', through the library's public interface."""

from __future__ import annotations

from side import Options, State, read_options, report_check, report_times


def turnout_rounds(options: Options, rounds: int) -> tuple[list[float], State]:
    """Run so many rounds of the case on `options.device`; the milliseconds of each, and the weights at the end."""
    raise NotImplementedError("the engine is not there yet")


if __name__ == "__main__":
    given = read_options("Time rounds of Turnout.")
    laps, state = turnout_rounds(given, 1 if given.check else given.warmup + given.rounds)
    if given.check:
        report_check("turnout", given, state)
    else:
        report_times("turnout", given, laps)
