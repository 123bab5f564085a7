//! Who is asked for one hook, in what order, before the built-in rule.

/// The policy in force and the one it displaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) in_force: Option<u32>,
    pub(crate) behind: Option<u32>,
}

impl Chain {
    /// Puts `policy` in force; the one it displaces stands behind it.
    pub(crate) fn put(&mut self, policy: u32) {
        if self.in_force != Some(policy) {
            self.behind = self.in_force.replace(policy);
        }
    }

    /// Takes `policy` out. Where it was in force, the one behind is now.
    pub(crate) fn remove(&mut self, policy: u32) {
        if self.behind == Some(policy) {
            self.behind = None;
        }
        if self.in_force == Some(policy) {
            self.in_force = self.behind.take();
        }
    }

    pub(crate) fn holds(&self, policy: u32) -> bool {
        self.iter().any(|number| number == policy)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        [self.in_force, self.behind].into_iter().flatten()
    }
}
