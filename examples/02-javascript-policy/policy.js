// A policy of a few lines, in JavaScript: each request goes where the most slots are free.

import { Mirror, freeSlots } from "./mirror.js";

const mirror = new Mirror();

// What `verdict.reason` counts into.
const REASONS = ["most free slots", "no room anywhere"];
const PLACED = 0;
const NO_ROOM = 1;

export const lifecycle = {
  describe() {
    return {
      name: "javascript-policy",
      version: "0.1.0",
      summary: "Each request goes where the most slots are free.",
      // What `route` reads. Nothing else is told.
      needs: [
        {
          hook: "routing",
          feed: {
            executors: true,
            loads: true,
            residencies: true,
            devices: true,
            models: true,
            waiting: true,
          },
        },
      ],
      reasons: REASONS,
      stateVersion: 1,
      ordersOne: false,
      settings: [],
    };
  },

  // What is thrown is shown to the operator.
  configure(settings, bounds) {
    const [key] = Object.keys(JSON.parse(settings));
    if (key !== undefined) throw `unknown field \`${key}\`, there are no fields`;
    mirror.heldMax = bounds.heldMax;
  },

  observe(now, extent, changes) {
    mirror.observe(extent, changes);
  },

  // All that this policy knows is in the mirror: nothing is worth carrying over.
  snapshot() {
    return new Uint8Array();
  },

  restore(state) {},
};

export const routing = {
  route(at, requests) {
    return requests.map((cached) => place(cached, at.now));
  },
};

// Where one request goes.
function place(cached, now) {
  const request = mirror.waiting.get(cached.request);
  const need = request && mirror.need(request, cached, now);
  let best = null;
  for (const executor of need ? mirror.executors.values() : []) {
    const seat = mirror.fit(need, executor);
    if (seat === null) continue;
    const candidate = { executor, seat, free: freeSlots(executor) };
    if (best === null || isBetter(candidate, best)) best = candidate;
  }
  if (best === null) {
    return { choice: { tag: "hold", val: need?.holdEnd ?? null }, reason: NO_ROOM };
  }
  mirror.place(need, best.executor, best.seat);
  return { choice: { tag: "place", val: [best.executor.id] }, reason: PLACED };
}

// A slot before a place in a queue, then free slots; of equals the first that was attached.
function isBetter(one, other) {
  if (one.seat !== other.seat) return one.seat < other.seat;
  if (one.free !== other.free) return one.free > other.free;
  return one.executor.id < other.executor.id;
}
