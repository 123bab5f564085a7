//! Pure state machine of the host: queue, slots, KV ledger, interlock.
