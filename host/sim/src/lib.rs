//! Deterministic runs of the core machine with scripted engines and real policies.
