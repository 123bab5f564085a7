//! The journal from outside: written, read, damaged, and of an earlier version.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and looks only for the entries it is about"
)]

mod common;
mod components;
mod damage;
mod golden;
mod writer;
