//! Tests of the host and the shipped policies together.
