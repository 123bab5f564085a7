"""A policy of a few lines, in Python: each request goes where the most slots are free."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.lifecycle import Description, Feed, Hook, Need
from wit_world.exports.routing import Choice_Hold, Choice_Place, Verdict

from mirror import Mirror

mirror = Mirror()

# What `Verdict.reason` counts into.
REASONS = ["most free slots", "no room anywhere"]
PLACED, NO_ROOM = range(2)

# What `route` reads. Nothing else is told.
NEEDS = (
    Feed.EXECUTORS | Feed.LOADS | Feed.RESIDENCIES | Feed.DEVICES | Feed.MODELS | Feed.WAITING
)


class Lifecycle(exports.Lifecycle):
    def describe(self):
        return Description(
            name="python-policy",
            version="0.1.0",
            summary="Each request goes where the most slots are free.",
            needs=[Need(Hook.ROUTING, NEEDS)],
            reasons=REASONS,
            state_version=1,
            orders_one=False,
            settings=[],
        )

    def configure(self, settings, bounds):
        """What is raised is shown to the operator."""
        for key in json.loads(settings):
            raise Err(f"unknown field `{key}`, there are no fields")
        mirror.held_max = bounds.held_max

    def observe(self, now, extent, changes):
        mirror.observe(extent, changes)

    def snapshot(self):
        """All that this policy knows is in the mirror: nothing is worth carrying over."""
        return b""

    def restore(self, state):
        pass


class Routing(exports.Routing):
    def route(self, at, requests):
        return [place(cached, at.now) for cached in requests]


def place(cached, now):
    """Where one request goes."""
    request = mirror.waiting.get(cached.request)
    if request is None:
        return Verdict(Choice_Hold(None), NO_ROOM)
    need = mirror.need(request, cached, now)
    # A slot before a place in a queue, then free slots; of equals the first that was attached.
    best = min(
        (
            (seat, -executor.free_slots, executor.id)
            for executor in mirror.executors.values()
            if (seat := mirror.fit(need, executor)) is not None
        ),
        default=None,
    )
    if best is None:
        return Verdict(Choice_Hold(need.hold_end), NO_ROOM)
    seat, _, executor_id = best
    mirror.place(need, mirror.executors[executor_id], seat)
    return Verdict(Choice_Place([executor_id]), PLACED)
