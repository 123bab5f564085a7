//! The engine keeps the executor contract: with and without its thread, on a scripted backend, on
//! two that take turns, and on the demo model.

use pointsman_executor::contract_suite;

use pointsman_engine::test_util::subjects::{
    Stepped, Threaded, demo, scripted, scripted_other, scripted_slow_swaps,
};

contract_suite!(stepped_engine, Stepped::new(&[scripted]), 30);
contract_suite!(engine_on_its_thread, Threaded::new(&[scripted]), 30);
contract_suite!(
    engine_whose_swaps_take_a_while,
    Stepped::new(&[scripted_slow_swaps]),
    30
);
contract_suite!(
    engine_on_its_thread_whose_swaps_take_a_while,
    Threaded::new(&[scripted_slow_swaps]),
    10
);
contract_suite!(
    stepped_engine_of_two_models,
    Stepped::new(&[scripted, scripted_other]),
    30
);
contract_suite!(
    engine_of_two_models_on_its_thread,
    Threaded::new(&[scripted, scripted_other]),
    10
);
contract_suite!(demo_model, Stepped::new(&[demo]), 3);
contract_suite!(demo_model_on_its_thread, Threaded::new(&[demo]), 3);
