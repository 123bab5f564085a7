//! Policies that misbehave, for the host's tests.
