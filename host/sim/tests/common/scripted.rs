//! Policies that answer as a test tells them, and remember their questions.

use std::fmt;

use pointsman_core::rows::{Cached, Change};
use pointsman_core::{
    Allotments, Answer, Arrangement, Author, DeviceId, Eviction, ExecutorId, Hook, Micros,
    Policies, Question, Refusal, Reply, RequestId, RowKinds, Shortage, TokensUsed, View, admission,
    routing,
};

type Admit = Box<dyn FnMut(RequestId) -> admission::Choice>;
type Order = Box<dyn FnMut(&[RequestId]) -> Vec<RequestId>>;
type Route = Box<dyn FnMut(Micros, RequestId) -> routing::Choice>;
type Evict = Box<dyn FnMut(&Shortage) -> Option<Eviction>>;
type Allot = Box<dyn FnMut(u32) -> Allotments>;
type Arrange = Box<dyn FnMut(&[RequestId]) -> Arrangement>;

/// Answers given by closures; the built-in rule decides where no closure is set.
#[derive(Default)]
pub struct Scripted {
    admit: Option<Admit>,
    order: Option<Order>,
    route: Option<Route>,
    evict: Option<Evict>,
    allot: Option<Allot>,
    arrange: Option<Arrange>,
    /// Verdicts too many in each answer of `admission` and `routing`.
    pub verdicts_too_many: u32,
    pub asked: Asked,
    /// The refusals that the interlock reported.
    pub refused: Vec<(Hook, Refusal)>,
    probe: Option<Vec<Change>>,
}

/// Every question, in order.
#[derive(Debug, Default)]
pub struct Asked {
    pub order: Vec<Vec<RequestId>>,
    pub route: Vec<(Micros, Cached)>,
    pub evict: Vec<(Micros, Shortage)>,
    pub allot: Vec<DeviceId>,
    pub arrange: Vec<(ExecutorId, Vec<RequestId>)>,
    /// The tokens that each engine had used, by question of `allot`.
    pub used: Vec<Vec<TokensUsed>>,
    /// The longest cached prefixes, by question of `order`.
    pub prefixes: Vec<Vec<u32>>,
    /// The longest cached prefix of each arrival, by question of `admit`.
    pub arrivals: Vec<Vec<u32>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

impl Scripted {
    pub fn on_admit(&mut self, answer: impl FnMut(RequestId) -> admission::Choice + 'static) {
        self.admit = Some(Box::new(answer));
    }

    pub fn on_order(&mut self, answer: impl FnMut(&[RequestId]) -> Vec<RequestId> + 'static) {
        self.order = Some(Box::new(answer));
    }

    pub fn on_route(&mut self, answer: impl FnMut(Micros, RequestId) -> routing::Choice + 'static) {
        self.route = Some(Box::new(answer));
    }

    /// Sends every request to the first of these executors that is in order.
    pub fn route_to(&mut self, executors: &[ExecutorId]) {
        let executors = executors.to_vec();
        self.on_route(move |_, _| routing::Choice::Place(executors.clone()));
    }

    pub fn on_evict(&mut self, answer: impl FnMut(&Shortage) -> Option<Eviction> + 'static) {
        self.evict = Some(Box::new(answer));
    }

    pub fn on_allot(&mut self, answer: impl FnMut(u32) -> Allotments + 'static) {
        self.allot = Some(Box::new(answer));
    }

    pub fn on_arrange(&mut self, answer: impl FnMut(&[RequestId]) -> Arrangement + 'static) {
        self.arrange = Some(Box::new(answer));
    }

    /// Counts the questions about a shortage of this request.
    pub fn evict_questions_for(&self, needy: RequestId) -> usize {
        let asked = self.asked.evict.iter();
        asked
            .filter(|(_, shortage)| shortage.needy == needy)
            .count()
    }

    /// The times at which this request was asked about.
    pub fn route_questions_for(&self, id: RequestId) -> Vec<Micros> {
        let asked = self.asked.route.iter();
        let asked = asked.filter(|(_, cached)| cached.request == id);
        asked.map(|(at, _)| *at).collect()
    }

    /// Marks the next arrival as made up: it is refused, and every row is noted.
    pub fn begin_probe(&mut self) {
        self.probe = Some(Vec::new());
    }

    pub fn end_probe(&mut self) -> Vec<Change> {
        let rows = self.probe.take().expect("a probe has begun");
        assert!(!rows.is_empty(), "the probe was not asked about");
        rows
    }

    /// The verdicts, with as many more as the test wants.
    fn padded<T: Clone>(&self, mut verdicts: Vec<T>) -> Vec<T> {
        for _ in 0..self.verdicts_too_many {
            verdicts.extend(verdicts.first().cloned());
        }
        verdicts
    }
}

/// Everything there is, as a policy that knows nothing yet is told it.
pub fn everything(view: &View<'_>) -> Vec<Change> {
    view.rows(RowKinds::ALL)
}

impl Scripted {
    fn answer(&mut self, view: &View<'_>, at: Micros, question: &Question<'_>) -> Option<Reply> {
        match question {
            Question::Admission { arrivals, .. } => {
                let verdict = |choice| admission::Verdict { choice, reason: 0 };
                if let Some(rows) = &mut self.probe {
                    *rows = everything(view);
                    let refused = verdict(admission::Choice::Shed(1));
                    return Some(Reply::Admission(vec![refused; arrivals.len()]));
                }
                let prefixes = arrivals.iter().map(|asked| asked.cached_tokens);
                self.asked.arrivals.push(prefixes.collect());
                let admit = self.admit.as_mut()?;
                let verdicts = arrivals.iter().map(|asked| verdict(admit(asked.request)));
                let verdicts = verdicts.collect();
                Some(Reply::Admission(self.padded(verdicts)))
            }
            Question::Priority(requests) => {
                let ids: Vec<RequestId> = requests.iter().map(|asked| asked.request).collect();
                self.asked.order.push(ids.clone());
                let prefixes = requests.iter().map(|asked| asked.cached_tokens);
                self.asked.prefixes.push(prefixes.collect());
                let order = self.order.as_mut()?;
                Some(Reply::Priority(order(&ids)))
            }
            Question::Routing(requests) => {
                let asked = requests.iter().map(|cached| (at, cached.clone()));
                self.asked.route.extend(asked);
                let route = self.route.as_mut()?;
                let verdicts = requests.iter().map(|cached| routing::Verdict {
                    choice: route(at, cached.request),
                    reason: 0,
                });
                let verdicts = verdicts.collect();
                Some(Reply::Routing(self.padded(verdicts)))
            }
            Question::Preemption(shortage) => {
                self.asked.evict.push((at, *shortage));
                let evict = self.evict.as_mut()?;
                Some(Reply::Preemption(evict(shortage)))
            }
            Question::Budget {
                device,
                tokens_total,
                used,
            } => {
                self.asked.allot.push(*device);
                self.asked.used.push(used.to_vec());
                let allot = self.allot.as_mut()?;
                Some(Reply::Budget(allot(*tokens_total)))
            }
            Question::Arrangement {
                executor,
                sequences,
            } => {
                self.asked.arrange.push((*executor, sequences.to_vec()));
                let arrange = self.arrange.as_mut()?;
                Some(Reply::Arrangement(arrange(sequences)))
            }
        }
    }
}

impl Policies for Scripted {
    fn ask(&mut self, asked: &pointsman_core::Asked<'_>) -> Answer<Reply> {
        let reply = self.answer(&asked.view, asked.at.now, &asked.question);
        reply.map_or_else(Answer::unbound, |reply| Answer::by(0, reply))
    }

    fn refused(&mut self, _: Author, hook: Hook, refusal: &Refusal) {
        self.refused.push((hook, *refusal));
    }
}
