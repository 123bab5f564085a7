//! A server under its operator's hands: orders, the monitor, journals and their replay, policies reloaded.

mod admin;
mod bench;
mod collector;
mod day;
mod given_up;
mod monitor;
mod monitor_data;
mod past;
mod reload_under_load;
mod replay;
mod retelling;
mod simulations;
