//! Reasons of verdicts, as the host shows them.

pointsman_sdk::reasons! {
    /// A reason; its index is what an answer carries.
    pub(crate) enum Reason {
        LeastPressed = "least KV pressure, then least load",
        LeastUsed = "smallest share of slots in use",
        Session = "the session's executor",
        WarmHold = "another model is kept warm where there is room",
        ModelLimit = "the model runs as often as it may",
        NoSlot = "no free slot",
        NoBlocks = "too few KV blocks",
        ModelsMax = "as many models run as may",
        Nowhere = "no live executor serves it",
        Unknown = "not told about this request",
        Hash = "the executor its session is hashed to",
        Overlap = "least cost for what it holds of the prompt",
        Waiver = "its model is warm nowhere: another's warm hold is waived",
        Drain = "where there is room is kept free for a model that is warm nowhere",
        HeldOut = "held for as long as the host allows: no warm hold, drain, group, loading, share or prompt of others binds it now",
        BadOverride = "by the operator's settings: a label that would override one is of no use",
        Loaded = "its model is loaded there",
        Loading = "its model is being loaded where there is room",
        Prefilling = "where there is room other prompts are prefilled first",
        Reserved = "where there is room is kept free of tenants beyond their share",
    }
}
