//! The kernels in the binary, against those in the repository.

use pointsman_cuda::module;

#[test]
fn the_ptx_comes_out_of_the_binary_as_it_is_in_the_repository() {
    let ptx = include_str!("../kernels/pointsman.ptx");
    assert!(module::ptx().unwrap() == ptx);
}
