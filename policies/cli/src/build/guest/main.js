// What the component exports: the policy's own interfaces, each with reports of what it throws.

// First, so that `console` is there when the policy's modules are loaded.
import { reported } from "./pointsman.js";
import * as policy from "../../MAIN";

export const lifecycle = reported(
  "lifecycle",
  ["describe", "configure", "observe", "snapshot", "restore"],
  policy.lifecycle,
);
export const admission = reported("admission", ["admit"], policy.admission);
export const priority = reported("priority", ["order"], policy.priority);
export const routing = reported("routing", ["route"], policy.routing);
export const preemption = reported("preemption", ["evict"], policy.preemption);
export const budget = reported("budget", ["allot", "arrange"], policy.budget);
export const explanation = reported("explanation", ["explain"], policy.explanation);
