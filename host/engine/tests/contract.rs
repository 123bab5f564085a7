//! The engine keeps the executor contract: with and without its thread, on a scripted backend and
//! on the demo model.

mod common;

use pointsman_executor::contract_suite;

use common::subjects::{Stepped, Threaded, demo, scripted};

contract_suite!(stepped_engine, Stepped::new(scripted), 30);
contract_suite!(engine_on_its_thread, Threaded::new(scripted), 30);
contract_suite!(demo_model, Stepped::new(demo), 3);
contract_suite!(demo_model_on_its_thread, Threaded::new(demo), 3);
