//! The leading blocks of a request's prompt, as an executor fills and reads them.

use pointsman_events::rows::ExecutorKind;
use pointsman_events::{BlockKind, ExecutorId, ModelId, ReadableBlocks};
use pointsman_kv::Prefix;

use super::super::requests::Request;
use super::executor::Executor;

/// The full blocks of a request's prompt on an executor. None are known where the hashes are of
/// blocks of another size than the machine hands out there.
pub(super) fn prefix_on<'a>(request: &'a Request, executor: &Executor) -> Prefix<'a> {
    let blocks = &request.prompt_blocks;
    let sole = || match executor.spec.serves.as_deref() {
        Some([model]) => Some(*model),
        Some(_) | None => None,
    };
    let model = request.row.model.or_else(sole);
    let is_own = model.is_none() || executor.spec.reads == ReadableBlocks::Own;
    let all = prefix_of(request, model, is_own.then_some(executor.id));
    let fits = executor.spec.kind == ExecutorKind::Remote
        || executor.spec.tokens_per_block == Some(blocks.tokens_per_block);
    if fits { all } else { all.first(0) }
}

/// The blocks that the request may share with others: all before the one that its last prompt
/// token is in. That token is always computed, for its logits, and so is written.
pub(super) fn shareable_prefix<'a>(request: &'a Request, executor: &Executor) -> Prefix<'a> {
    let all = prefix_on(request, executor);
    let whole = request.row.prompt_tokens.saturating_sub(1) / all.tokens_per_block().max(1);
    all.first(whole)
}

/// The full blocks of a request's prompt in a cache that any executor can read.
pub(super) fn prefix_in_shared_cache(request: &Request) -> Prefix<'_> {
    prefix_of(request, request.row.model, None)
}

fn prefix_of(request: &Request, model: Option<ModelId>, only: Option<ExecutorId>) -> Prefix<'_> {
    let blocks = &request.prompt_blocks;
    let kind = BlockKind {
        model,
        adapter: request.row.adapter,
        tokens_per_block: blocks.tokens_per_block,
    };
    Prefix::new(kind, only, &blocks.hashes)
}
