//! The seam behind which policies answer the machine's questions.
//!
//! [`Policies`] is implemented by `pointsman-policy` over WebAssembly components and natively
//! by tests. An implementation brings the policy's mirror up to date from the [`View`] before
//! it passes a question on; [`crate::Feed`] does that bookkeeping for both.
//!
//! # Not here
//! The choice of answers that may take effect: the interlock's, in [`crate::Machine::decide`].

use crate::asked::Asked;
use crate::view::View;
use pointsman_events::{Answer, Author, Hook, Refusal, Reply, RequestId, Strike};

/// An answerer of the machine's questions.
///
/// Each method may change nothing but the implementor's own state.
pub trait Policies {
    /// Answers a question. A reply of another hook than the question's counts as no answer.
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply>;

    /// The number of `requests`, counted from the first, that one policy answers together. The
    /// machine asks `hook` about those, and about the rest once that answer has been applied: a
    /// policy that answers for a part of the requests knows by then what became of those before
    /// them. Only hooks for which [`Hook::is_by_request`] holds are asked in such runs.
    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let _ = (view, hook);
        requests.len()
    }

    /// Hears that the interlock refused an answer of `author`.
    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        let _ = (author, hook, refusal);
    }

    /// Hears that a liveness bound ran out under the policy that answers for the request, and
    /// that the built-in rule steps in.
    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        let _ = (view, strike);
    }
}

impl<P: Policies + ?Sized> Policies for &mut P {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        (**self).ask(asked)
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        (**self).run(view, hook, requests)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        (**self).refused(author, hook, refusal);
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        (**self).struck(view, strike);
    }
}

/// The absence of policies: every decision is the built-in rule's.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPolicies;

impl Policies for NoPolicies {
    fn ask(&mut self, _: &Asked<'_>) -> Answer<Reply> {
        Answer::unbound()
    }
}

/// Policies whose questions pass through a [`Sink`], which watches, times or records them.
#[derive(Clone, Debug, Default)]
pub struct Tap<P, S> {
    /// The policies that answer.
    pub inner: P,
    /// The watcher of the questions.
    pub sink: S,
}

/// A watcher of every question and its answer.
pub trait Sink<P> {
    /// Asks `inner`, and does the watcher's work before and after.
    fn ask(&mut self, inner: &mut P, asked: &Asked<'_>) -> Answer<Reply>;
}

impl<P: Policies, S: Sink<P>> Policies for Tap<P, S> {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        self.sink.ask(&mut self.inner, asked)
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        self.inner.run(view, hook, requests)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.inner.refused(author, hook, refusal);
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        self.inner.struck(view, strike);
    }
}
