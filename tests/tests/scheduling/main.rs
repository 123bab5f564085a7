//! Decisions of policies through a running server: order, holds, room, overload, failover.

mod changes_of_models;
mod failover;
mod holds;
mod hostile_under_load;
mod late;
mod overload;
mod prefill;
mod swap;
mod told_rounds;
