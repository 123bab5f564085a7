"""What the host has told, what this policy has placed since, and what fits where.

The SDK does this for policies in Rust. Here are the rows that a routing policy without affinity
needs; to follow more (sequences, tenants, names), ask for them in `needs` of `describe` and add a case.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from wit_world.imports.types import (
    Change_Device,
    Change_Executor,
    Change_ExecutorGone,
    Change_Load,
    Change_Model,
    Change_Residency,
    Change_ResidencyGone,
    Change_Waiting,
    Change_WaitingGone,
    ExecutorInfo,
    ExecutorKind,
    ExecutorLoad,
    Extent,
    Health,
    Request,
    RequestClass,
)


class Seat(IntEnum):
    """Where on an executor a request goes; a smaller number is better."""

    SLOT = 0
    QUEUE = 1


class Need(NamedTuple):
    """What a request needs, worked out once for all executors."""

    request: Request
    # What executors hold of its prompt.
    overlaps: list
    now: int
    is_limit_reached: bool
    # The time until which it can wait on purpose, or None where the host lets it no longer.
    hold_end: int

    def tokens_on(self, executor_id):
        """Tokens of the prompt that an executor is listed as holding in its device's memory."""
        rows = (row for row in self.overlaps if row.executor == executor_id)
        return next((row.device_tokens for row in rows), 0)


@dataclass
class Placed:
    """What the present answer has placed on one executor."""

    slots: int = 0
    queued: Counter = field(default_factory=Counter)
    # Models that did not run there.
    started: set = field(default_factory=set)


@dataclass(slots=True)
class Executor:
    """Its rows, which come in any order."""

    id: int
    info: ExecutorInfo = None
    load: ExecutorLoad = None
    residencies: dict = field(default_factory=dict)
    placed: Placed = None

    @property
    def free_slots(self):
        placed = self.placed.slots if self.placed else 0
        return max(0, self.info.slots_total - self.load.slots_used - placed)

    def seat(self, request):
        """A slot, a place in the queue of its class, or None."""
        if self.free_slots > 0:
            return Seat.SLOT
        throughput = request.class_ == RequestClass.THROUGHPUT
        queued = self.load.queued_throughput if throughput else self.load.queued_critical
        if self.placed:
            queued += self.placed.queued[request.class_]
        return Seat.QUEUE if queued < self.info.queue_limit else None

    def model_fits(self, model):
        """No more models than may run there."""
        if model is None or self.info.models_max is None:
            return True
        started = self.placed.started if self.placed else ()
        running = sum(row.sequences > 0 for row in self.residencies.values())
        is_new = not self.runs(model) and model not in started
        return running + len(started) + is_new <= self.info.models_max

    def is_kept_warm(self, need):
        """A model that is kept warm is not driven out by another, as long as that one can be held.

        One that was placed there has done so already.
        """
        model = need.request.model
        has_started = self.placed is not None and bool(self.placed.started)
        if model is None or need.hold_end is None or self.runs(model) or has_started:
            return False
        rows = self.residencies.values()
        others = (row for row in rows if row.model != model and row.sequences == 0)
        return any((row.warm_until or 0) > need.now for row in others)

    def runs(self, model):
        return model in self.residencies and self.residencies[model].sequences > 0

    @property
    def is_elsewhere(self):
        return self.info.kind == ExecutorKind.REMOTE

    def blocks_on(self, request):
        """Blocks for the prompt and the first token, or all that may be generated.

        The latter where what runs cannot be taken off again. A server elsewhere makes room for itself.
        """
        makes_room = self.info.preempts or self.is_elsewhere
        generated = min(1, request.output_tokens_max) if makes_room else request.output_tokens_max
        return -(-(request.prompt_tokens + generated) // self.info.tokens_per_block)

    def blocks(self, request, device, cached_tokens):
        """Those of them that a placement takes where the device has so many tokens of the prompt.

        The tokens of a prompt are a guess at a server elsewhere, so that nothing takes more than half of all there.
        """
        spared = self.blocks_spared(request, device, cached_tokens)
        blocks = max(0, self.blocks_on(request) - spared)
        if self.is_elsewhere:
            return min(blocks, -(-device.blocks_total // 2))
        return blocks

    def blocks_spared(self, request, device, cached_tokens):
        """Blocks of the prompt that a placement does not take.

        Those that sequences hold for certain, and at a server elsewhere all that it has. A cached block of it is
        no gain, since it counts among the available ones.
        """
        # The last token is computed in any case, and goes into a block of the request's own.
        shareable = max(0, request.prompt_tokens - 1)
        cached = min(cached_tokens, shareable) // self.info.tokens_per_block
        return cached if self.is_elsewhere else max(0, cached - device.blocks_cached)


class Mirror:
    # How long the host lets a request be held on purpose, in microseconds: `bounds.held_max` of
    # `configure`.
    held_max = 0

    def __init__(self):
        self._forget()

    def _forget(self):
        # By id. All but executors are rows as in `wit/types.wit`.
        self.executors = {}
        self.devices = {}
        self.models = {}
        self.waiting = {}
        self._void()

    def _void(self):
        """The host may have refused what was placed. What it took is in the rows that come."""
        for executor in self.executors.values():
            executor.placed = None
        self.blocks_placed = Counter()
        self.models_placed = Counter()

    def observe(self, extent, changes):
        if extent == Extent.EVERYTHING:
            self._forget()
        else:
            self._void()
        for change in changes:
            self._apply(change)

    def _apply(self, change):
        match change:
            case Change_Executor(row):
                self._executor(row.id).info = row
            case Change_Load(row):
                self._executor(row.id).load = row
            case Change_ExecutorGone(executor_id):
                self.executors.pop(executor_id, None)
            case Change_Residency(row):
                self._executor(row.executor).residencies[row.model] = row
            case Change_ResidencyGone(gone):
                self._executor(gone.executor).residencies.pop(gone.model, None)
            # Without blocks it is the last news of a server elsewhere, which tells of none any more.
            case Change_Device(row) if row.blocks_total == 0:
                self.devices.pop(row.id, None)
            case Change_Device(row):
                self.devices[row.id] = row
            case Change_Model(row):
                self.models[row.id] = row
            case Change_Waiting(row):
                self.waiting[row.id] = row
            case Change_WaitingGone(request_id):
                self.waiting.pop(request_id, None)

    def _executor(self, executor_id):
        if executor_id not in self.executors:
            self.executors[executor_id] = Executor(executor_id)
        return self.executors[executor_id]

    def need(self, request, cached, now):
        model = self.models.get(request.model)
        limited = model is not None and model.running_max is not None
        reached = limited and model.running + self.models_placed[model.id] >= model.running_max
        end = now + self.held_max if request.hold_end is None else request.hold_end
        hold_end = end if end > now else None
        return Need(request, cached.overlaps or [], now, reached, hold_end)

    def fit(self, need, executor):
        """The seat an executor has for what is needed, or None: what the host checks, beforehand."""
        request, info, load = need.request, executor.info, executor.load
        if info is None or load is None or need.is_limit_reached:
            return None
        if load.health not in (Health.UP, Health.DEGRADED):
            return None
        if None not in (request.model, info.serves) and request.model not in info.serves:
            return None
        if request.allowed is not None and executor.id not in request.allowed:
            return None
        if request.failed_on is not None and executor.id in request.failed_on:
            return None
        if not executor.model_fits(request.model) or executor.is_kept_warm(need):
            return None
        return None if self._tokens_shared(need, executor) is None else executor.seat(request)

    def _tokens_shared(self, need, executor):
        """Tokens of its prompt without which a request finds no blocks on an executor.

        0 where it needs none of them there, None where it finds no blocks with them either.
        """
        request = need.request
        device = self.devices.get(executor.info.device)
        if device is None or not executor.info.tokens_per_block:
            return 0
        # All that it may need has to fit into the empty device. A server elsewhere knows that for itself.
        bound = request.prompt_tokens + request.output_tokens_max
        room = device.blocks_total * executor.info.tokens_per_block
        if bound > room and not executor.is_elsewhere:
            return None
        free = device.blocks_free + device.blocks_cached - self.blocks_placed[device.id]
        # The second comparison alone would do, but each call of a function takes much fuel here.
        if executor.blocks_on(request) <= free or executor.blocks(request, device, 0) <= free:
            return 0
        tokens = need.tokens_on(executor.id)
        return tokens if executor.blocks(request, device, tokens) <= free else None

    def place(self, need, executor, seat):
        """Counts a placement of this answer, which later ones must reckon with."""
        request = need.request
        device = self.devices.get(executor.info.device)
        # Where nobody counts blocks, none are taken.
        if device is not None and executor.info.tokens_per_block:
            shared = self._tokens_shared(need, executor) or 0
            self.blocks_placed[device.id] += executor.blocks(request, device, shared)
        executor.placed = placed = executor.placed or Placed()
        if seat == Seat.SLOT:
            placed.slots += 1
        else:
            placed.queued[request.class_] += 1
        if request.model is not None:
            if not executor.runs(request.model):
                placed.started.add(request.model)
            self.models_placed[request.model] += 1
