"""Who needs the allocator in which step, against a dictionary from sequence to step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simulator.serving.due_calendar import DueCalendar
from simulator.serving.sequence import Sequence

NEVER = 1 << 63


class CalendarMachine(RuleBasedStateMachine):
    """Sequences come, go, get one page or several, one step at a time or a block of steps together."""

    @initialize(page_tokens=st.integers(0, 5))
    def start(self, page_tokens: int) -> None:
        self.calendar = DueCalendar(page_tokens)
        self.page_tokens = max(page_tokens, 1)
        self.now = 0
        self.admitted = 0
        self.due: dict[Sequence, int] = {}
        self.events: list[int] = []

    def due_in(self, step: int) -> list[Sequence]:
        return sorted((one for one, due in self.due.items() if due == step), key=lambda one: (one.serial, one.seat))

    def put(self, sequence: Sequence, step: int) -> None:
        self.calendar.put(sequence, step, self.now)
        self.due[sequence] = step if step <= sequence.finish_step else NEVER
        self.events.append(step)

    @rule(ahead=st.integers(1, 14), lasts=st.integers(0, 30), older=st.integers(0, 2))
    def come(self, ahead: int, lasts: int, older: int) -> None:
        sequence = Sequence(self.admitted, prompt_tokens=1, output_tokens=1, arrival_ns=0, sample=self.admitted)
        # a request's other samples come later, with its serial and seats of their own
        sequence.serial = self.admitted - older
        self.admitted += 1
        sequence.finish_step = self.now + 1 + lasts
        self.put(sequence, self.now + ahead)

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.due:
            sequence = data.draw(st.sampled_from(list(self.due)))
            self.calendar.remove(sequence)
            del self.due[sequence]

    @rule(ahead=st.integers(1, 9))
    def something_else_is_to_change(self, ahead: int) -> None:
        self.calendar.put_event(self.now + ahead)
        self.events.append(self.now + ahead)

    @rule(data=st.data())
    def serve_a_step(self, data: st.DataObject) -> None:
        step = self.now + 1
        due = self.calendar.due(step)
        assert due == self.due_in(step)
        assert self.calendar.at_most(step) >= len(due)
        for sequence in due:
            if data.draw(st.booleans()):
                self.put(sequence, step + data.draw(st.integers(1, 3)) * self.page_tokens)
        waiting = self.calendar.due(step)
        assert waiting == self.due_in(step), "whoever was not served is still due"
        for sequence in waiting:
            self.put(sequence, step + self.page_tokens)
        self.advance(step)

    @rule(data=st.data())
    def serve_a_block(self, data: st.DataObject) -> None:
        last = min((one.finish_step for one in self.due), default=NEVER)
        count = data.draw(st.integers(0, max(0, min(self.page_tokens, last - self.now))))
        due = self.calendar.due_after(self.now, count)
        assert due == [self.due_in(self.now + 1 + at) for at in range(count)]
        taken = data.draw(st.integers(0, count))
        for some in due[:taken]:
            for sequence in some:
                self.due[sequence] += self.page_tokens
        self.advance(self.now + taken)

    def advance(self, step: int) -> None:
        self.now = step
        for sequence in [one for one in self.due if one.finish_step <= step]:
            self.calendar.remove(sequence)
            del self.due[sequence]
        for sequence in [one for one, due in self.due.items() if due > one.finish_step]:
            self.due[sequence] = NEVER

    @invariant()
    def it_is_quiet_until_somebody_is_due(self) -> None:
        if not hasattr(self, "calendar"):
            return
        first = min(self.due.values(), default=NEVER)
        event = min((step for step in self.events if step > self.now), default=NEVER)
        quiet = self.calendar.quiet_until(self.now)
        assert self.now <= quiet
        assert quiet < first, "somebody is due before"
        turns = [self.turn(one) for one in self.due if one.ring_seat >= 0]
        assert quiet >= min(first - 1, event - 1, self.now + self.page_tokens, *turns), "it is quiet for longer"

    def turn(self, sequence: Sequence) -> int:
        """The last step before ``sequence`` would take a page, also if it has finished by then."""
        behind = max(0, self.now + 1 - sequence.due_step)
        return sequence.due_step + -(-behind // self.page_tokens) * self.page_tokens - 1


TestCalendar = CalendarMachine.TestCase
TestCalendar.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
