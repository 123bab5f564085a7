//! Reasons of answers, as the host shows them.

pointsman_sdk::reasons! {
    /// A reason; its index is what an answer carries.
    pub(crate) enum Reason {
        Room = "there is room",
        Parked = "the queue is full: waits outside",
        Full = "the queue is full",
        Displaced = "the queue is full: takes the place of the oldest that is no more urgent",
        LeastUrgent = "the queue is full of more urgent requests",
        Background = "the queue is full, and it would not wait",
        Saturated = "every executor that could take it is saturated, and it would not wait",
        Unknown = "not told about this request",
        Late = "it would wait longer than it may, at the pace at which those before it get a place",
        Overdrawn = "its tenant is over its tokens per minute, and others wait",
        PlaceOfAnother = "the queue is full: takes the place of a tenant beyond its share",
        BeyondShare = "the queue is full, and its tenant is beyond its share",
        SlotTaken = "a less urgent sequence gives its slot",
        BlocksFromNeighbour = "the least urgent engine of the device gives blocks",
        BlocksFromOwn = "less urgent sequences of the same engine give blocks",
        BlocksFromLater = "later sequences as urgent give blocks",
        ModelDriven = "a less urgent model gives its place",
        NoRoom = "the queue is full, and there is no room outside it",
        Surge = "far more come than get a place, and it would wait longer than it may while they do",
    }
}
