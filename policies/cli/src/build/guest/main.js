// What the component exports: the policy's own interfaces, each with reports of what it throws.

// First, so that `console` is there when the policy's modules are loaded.
import { reported } from "./pointsman.js";
import * as policy from "../../MAIN";

EXPORTS
