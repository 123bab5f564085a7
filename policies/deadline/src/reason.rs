//! Reasons of verdicts, as the host shows them.

pointsman_sdk::reasons! {
    /// A reason; its index is what an answer carries.
    pub(crate) enum Reason {
        InTime = "the least used that makes the deadline",
        NoDeadline = "the least used",
        Late = "late, and room is left",
        OldTimes = "idle, and its times are old",
        TooLate = "no executor can make the deadline any more",
        FasterIsBusy = "what would make the deadline has no room",
        NoRoom = "no room anywhere",
        Nowhere = "no live executor may take it",
        Unknown = "not told about this request",
    }
}
