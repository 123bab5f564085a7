//! Why a verdict is what it is: the texts the host shows.

/// A reason; its index is what an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    LeastPressed,
    LeastUsed,
    Session,
    WarmHold,
    ModelLimit,
    NoSlot,
    NoBlocks,
    ModelsMax,
    Nowhere,
    Unknown,
    Hash,
    Overlap,
    Waiver,
    Drain,
}

const ALL: [(Reason, &str); 14] = [
    (Reason::LeastPressed, "least KV pressure, then least load"),
    (Reason::LeastUsed, "smallest share of slots in use"),
    (Reason::Session, "the session's executor"),
    (
        Reason::WarmHold,
        "another model is kept warm where there is room",
    ),
    (Reason::ModelLimit, "the model runs as often as it may"),
    (Reason::NoSlot, "no free slot"),
    (Reason::NoBlocks, "too few KV blocks"),
    (Reason::ModelsMax, "as many models run as may"),
    (Reason::Nowhere, "no live executor serves it"),
    (Reason::Unknown, "not told about this request"),
    (Reason::Hash, "the executor its session is hashed to"),
    (
        Reason::Overlap,
        "least cost for what it holds of the prompt",
    ),
    (
        Reason::Waiver,
        "its model is warm nowhere: another's warm hold is waived",
    ),
    (
        Reason::Drain,
        "where there is room is kept free for a model that is warm nowhere",
    ),
];

impl Reason {
    pub(crate) fn texts() -> Vec<String> {
        ALL.iter().map(|&(_, text)| text.to_owned()).collect()
    }

    pub(crate) fn index(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn texts_stand_in_the_order_of_their_reasons() {
        for (index, (reason, _)) in ALL.iter().enumerate() {
            assert_eq!(usize::from(reason.index()), index);
        }
    }
}
