//! Order of the queue: class, priority, head start and affinity, aged so that nothing starves.
