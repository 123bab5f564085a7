//! Requests as spans of OTLP: one of the request, as its client's server; one for each time without a
//! place, and one for each placement, which a server elsewhere takes for its parent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pointsman_driver::clock::SystemClock;
use pointsman_driver::spans::{
    AskedFor, Operation, PlacementEnd, PlacementSpan, RequestSpan, Wait,
};
use pointsman_executor::delivery::StopReason;
use pointsman_executor::trace::SpanId;
use pointsman_interface::Micros;

use crate::names;
use crate::otlp::{
    Attribute, Digits, Event, Resource, ResourceSpans, Scope, ScopeSpans, Span, SpanKind, Status,
    Traces, Value, Whole,
};

/// The bit of a span's flags by which the next one means something.
const HAS_IS_REMOTE: u32 = 0x100;
/// The bit of the flags that says that the parent is in another process.
const IS_REMOTE: u32 = 0x200;

/// The things that spans of all requests have in common.
pub(super) struct SpanEncoder {
    pub(super) resource: Arc<Resource>,
    /// The address at which clients are answered.
    pub(super) addr: SocketAddr,
    /// The clock of the spans' times.
    pub(super) clock: SystemClock,
}

/// A request, to become spans.
struct Encoding<'a> {
    request: &'a RequestSpan,
    addr: SocketAddr,
    /// The time of the clock's start, since 1970.
    epoch: Micros,
}

impl SpanEncoder {
    /// The message with the spans of these requests.
    ///
    /// # Panics
    /// Never: texts and numbers can be written as JSON.
    pub(super) fn encode(&self, requests: &[RequestSpan]) -> Bytes {
        let epoch = self.clock.start_since_1970();
        let mut spans = Vec::new();
        for request in requests {
            let encoding = Encoding {
                request,
                addr: self.addr,
                epoch,
            };
            encoding.write(&mut spans);
        }
        let scope_spans = ScopeSpans {
            scope: Scope::default(),
            spans,
        };
        let traces = Traces {
            resource_spans: [ResourceSpans {
                resource: &self.resource,
                scope_spans: [scope_spans],
            }],
        };
        let json = serde_json::to_vec(&traces);
        json.expect("texts and numbers can be written as JSON")
            .into()
    }
}

impl Encoding<'_> {
    fn write(&self, to: &mut Vec<Span>) {
        to.push(self.root());
        to.extend(self.request.waits.iter().map(|wait| self.wait(wait)));
        let placements = self.request.placements.iter();
        to.extend(placements.map(|placement| self.placement(placement)));
    }

    /// The span of the request.
    fn root(&self) -> Span {
        let request = self.request;
        let parent = request.parent.as_ref();
        let name = named(request.operation, request.model.as_deref());
        let mut span = self.span(
            (request.context.span, name, SpanKind::Server),
            (request.arrived, request.ended),
        );
        span.parent_span_id = parent.map(|headers| Digits(headers.parent.span));
        if parent.is_some() {
            span.flags |= IS_REMOTE;
        }
        span.attributes = self.of_request();
        match request.status {
            None => {
                span.attributes.extend(self.of_answer());
                span.attributes.extend(self.of_routing());
            }
            Some(status) => {
                let status = Attribute::whole(names::STATUS_CODE, status);
                span.attributes.push(status);
            }
        }
        span.attributes.extend(self.of_outcome());
        span.events.extend(request.first_token.map(|at| Event {
            time_unix_nano: self.nanos(at),
            name: names::FIRST_TOKEN_EVENT,
        }));
        if let Some((outcome, why)) = request.error {
            // A client that leaves is nobody's error.
            if outcome != CANCELLED {
                span.status = Status::error(why);
            }
        }
        span
    }

    /// A span of the request's trace, below the request's own.
    fn span(
        &self,
        (id, name, kind): (SpanId, String, SpanKind),
        (from, until): (Micros, Micros),
    ) -> Span {
        let context = self.request.context;
        let parent = self.request.parent.as_ref();
        Span {
            trace_id: Digits(context.trace),
            span_id: Digits(id),
            parent_span_id: Some(Digits(context.span)),
            trace_state: parent.and_then(|headers| headers.state.clone()),
            flags: u32::from(context.flags) | HAS_IS_REMOTE,
            name,
            kind,
            start_time_unix_nano: self.nanos(from),
            end_time_unix_nano: self.nanos(until),
            attributes: Vec::new(),
            events: Vec::new(),
            status: Status::default(),
        }
    }

    fn wait(&self, wait: &Wait) -> Span {
        let named = (wait.span, names::QUEUE_SPAN.to_owned(), SpanKind::Internal);
        self.span(named, (wait.from, wait.until))
    }

    fn placement(&self, placement: &PlacementSpan) -> Span {
        let request = self.request;
        let (kind, provider) = match placement.server {
            Some(_) => (SpanKind::Client, names::OTHER_PROVIDER),
            None => (SpanKind::Internal, names::OWN_PROVIDER),
        };
        let model = Some(&*placement.model).filter(|model| !model.is_empty());
        let name = named(request.operation, model.or(request.model.as_deref()));
        let times = (placement.placed, placement.ended);
        let mut span = self.span((placement.span, name, kind), times);
        let list = &mut span.attributes;
        list.push(Attribute::text(names::OPERATION, word(request.operation)));
        list.push(Attribute::text(names::PROVIDER, provider));
        list.extend(model.map(|model| Attribute::text(names::REQUEST_MODEL, model)));
        list.extend(of_asked(&request.asked));
        list.extend(of_placement(placement));
        if let Some(server) = &placement.server {
            list.push(Attribute::text(names::SERVER_ADDRESS, server.host()));
            list.push(Attribute::whole(names::SERVER_PORT, server.port()));
        }
        let end = end_word(placement.end);
        list.push(Attribute::text(names::PLACEMENT_END, end));
        let tokens = placement.output_tokens;
        list.push(Attribute::whole(names::PLACEMENT_TOKENS, tokens));
        if placement.end == PlacementEnd::Served {
            list.extend(self.of_response(&placement.model, tokens));
        }
        if is_failure(placement.end) {
            list.push(Attribute::text(names::ERROR_TYPE, end));
            span.status = Status::error(&placement.why);
        }
        span.events.extend(placement.started.map(|at| Event {
            time_unix_nano: self.nanos(at),
            name: names::STARTED_EVENT,
        }));
        span
    }

    /// The things that the client asked for.
    fn of_request(&self) -> Vec<Attribute> {
        let request = self.request;
        let mut list = vec![
            Attribute::text(names::OPERATION, word(request.operation)),
            Attribute::text(names::PROVIDER, names::OWN_PROVIDER),
            Attribute::whole(names::SERVER_PORT, self.addr.port()),
        ];
        let ticket = request.ticket;
        list.extend(ticket.map(|ticket| Attribute::whole(names::REQUEST, ticket.0)));
        let tenant = request.tenant.as_deref();
        list.extend(tenant.map(|tenant| Attribute::text(names::TENANT, tenant)));
        if !self.addr.ip().is_unspecified() {
            let address = self.addr.ip().to_string();
            list.push(Attribute::text(names::SERVER_ADDRESS, address));
        }
        let model = request.model.as_deref();
        list.extend(model.map(|model| Attribute::text(names::REQUEST_MODEL, model)));
        list.extend(of_asked(&request.asked));
        let session = request.session.map(|session| format!("{:016x}", session.0));
        list.extend(session.map(|session| Attribute::text(names::CONVERSATION, session)));
        list
    }

    /// The things that the client got.
    fn of_answer(&self) -> Vec<Attribute> {
        let request = self.request;
        let last = request.placements.last();
        let model = last.map_or("", |placement| &*placement.model);
        let mut list = self.of_response(model, request.output_tokens);
        if let Some(first) = request.first_token {
            let since = seconds(first.since(request.arrived));
            list.push(Attribute::double(names::FIRST_CHUNK_SECONDS, since));
        }
        list
    }

    /// The model that answered, the words about its answer, and the tokens that it read and generated.
    fn of_response(&self, model: &str, generated: u32) -> Vec<Attribute> {
        let request = self.request;
        let mut list = Vec::new();
        if !model.is_empty() {
            list.push(Attribute::text(names::RESPONSE_MODEL, model));
        }
        let id = request.server_answer.as_ref();
        let id = id.and_then(|answer| answer.id.as_deref());
        list.extend(id.map(|id| Attribute::text(names::RESPONSE_ID, id)));
        let values = self.finish_reasons();
        if !values.is_empty() {
            list.push(Attribute {
                key: names::FINISH_REASONS,
                value: Value::List { values },
            });
        }
        if let Some(tokens) = request.input_tokens {
            list.push(Attribute::whole(names::INPUT_TOKENS, tokens));
        }
        if request.cached_tokens > 0 {
            let tokens = request.cached_tokens;
            list.push(Attribute::whole(names::CACHED_TOKENS, tokens));
        }
        list.push(Attribute::whole(names::OUTPUT_TOKENS, generated));
        list
    }

    /// The reasons why generation ended: the engine's, or those that a server elsewhere has told.
    fn finish_reasons(&self) -> Vec<Value> {
        let own = self.request.stop.map(reason);
        let answer = self.request.server_answer.iter();
        let told = answer.flat_map(|answer| answer.finish_reasons.iter().map(String::as_str));
        let reasons = own.into_iter().chain(told);
        reasons
            .map(|reason| Value::Text(reason.to_owned()))
            .collect()
    }

    /// The end of the request.
    fn of_outcome(&self) -> Vec<Attribute> {
        let request = self.request;
        let (outcome, why) = request.error.unwrap_or((FINISHED, ""));
        let mut list = vec![Attribute::text(names::OUTCOME, outcome)];
        if request.error.is_some() {
            let kind = if why.is_empty() { outcome } else { why };
            list.push(Attribute::text(names::ERROR_TYPE, kind));
        }
        list
    }

    /// The way that the request took.
    fn of_routing(&self) -> Vec<Attribute> {
        let request = self.request;
        let waits = request.waits.iter();
        let waited = waits.map(|wait| seconds(wait.until.since(wait.from)));
        let mut list = vec![
            Attribute::whole(names::ATTEMPTS, request.attempts),
            Attribute::double(names::QUEUE_SECONDS, waited.sum()),
        ];
        list.extend(request.placements.last().into_iter().flat_map(of_placement));
        list
    }

    fn nanos(&self, at: Micros) -> Whole {
        nanos(self.epoch, at)
    }
}

/// The word of an outcome that is no error.
const FINISHED: &str = "finished";
/// The word of the outcome of a request whose client left.
const CANCELLED: &str = "cancelled";

/// A time of a clock that started at `epoch`, in ns since 1970.
pub(super) fn nanos(epoch: Micros, at: Micros) -> Whole {
    Whole(epoch.0.saturating_add(at.0).saturating_mul(1000))
}

/// The numbers that the client asked with.
fn of_asked(asked: &AskedFor) -> Vec<Attribute> {
    let stream = asked.stream.map(|stream| Attribute {
        key: names::REQUEST_STREAM,
        value: Value::Flag(stream),
    });
    let wholes = [
        (names::REQUEST_CHOICES, asked.choices.map(u64::from)),
        (names::REQUEST_TOKENS_MAX, asked.tokens_max.map(u64::from)),
        (names::REQUEST_SEED, asked.seed),
    ];
    let doubles = [
        (names::REQUEST_TEMPERATURE, asked.temperature),
        (names::REQUEST_TOP_P, asked.top_p),
        (names::REQUEST_TOP_K, asked.top_k),
        (names::REQUEST_FREQUENCY_PENALTY, asked.frequency_penalty),
        (names::REQUEST_PRESENCE_PENALTY, asked.presence_penalty),
    ];
    let wholes = wholes.into_iter();
    let wholes = wholes.filter_map(|(key, number)| Some(Attribute::whole(key, number?)));
    let doubles = doubles.into_iter();
    let doubles = doubles.filter_map(|(key, number)| Some(Attribute::double(key, number?)));
    stream.into_iter().chain(wholes).chain(doubles).collect()
}

/// The place and the decision behind it.
fn of_placement(placement: &PlacementSpan) -> Vec<Attribute> {
    let mut list = vec![
        Attribute::text(names::EXECUTOR, &*placement.executor),
        Attribute::text(names::POLICY, &*placement.policy),
    ];
    if !placement.reason.is_empty() {
        list.push(Attribute::text(names::REASON, &*placement.reason));
    }
    list
}

/// The name of a span, as the conventions have it.
fn named(operation: Operation, model: Option<&str>) -> String {
    let operation = word(operation);
    model.map_or_else(
        || operation.to_owned(),
        |model| format!("{operation} {model}"),
    )
}

/// The conventions' word for an operation, where they have one.
fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Chat => "chat",
        Operation::TextCompletion => "text_completion",
        Operation::Embeddings => "embeddings",
        Operation::Rerank => "rerank",
        Operation::Tokenize => "tokenize",
        Operation::Detokenize => "detokenize",
        Operation::Other => "other",
    }
}

fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Stop => "stop",
        StopReason::Length => "length",
    }
}

fn end_word(end: PlacementEnd) -> &'static str {
    match end {
        PlacementEnd::Open | PlacementEnd::CutOff => "cut-off",
        PlacementEnd::Served => "served",
        PlacementEnd::Evicted => "evicted",
        PlacementEnd::Failed => "failed",
        PlacementEnd::Lost => "lost",
        PlacementEnd::TurnedBack => "turned-back",
    }
}

fn is_failure(end: PlacementEnd) -> bool {
    match end {
        PlacementEnd::Failed | PlacementEnd::Lost | PlacementEnd::TurnedBack => true,
        PlacementEnd::Open
        | PlacementEnd::CutOff
        | PlacementEnd::Served
        | PlacementEnd::Evicted => false,
    }
}

fn seconds(micros: Micros) -> f64 {
    Duration::from_micros(micros.0).as_secs_f64()
}
