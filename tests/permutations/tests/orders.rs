//! Each check in random orders of its steps.

use haulout_permutations::checks;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// The orders of each check and scheduler.
const ORDERS: usize = 3_000;

/// The first number of the schedulers, so that each run tries the same orders.
const SEED: u64 = 1;

/// The most changes of priority in an order: most defects need two or three.
const DEPTH: usize = 3;

fn in_random_orders(check: fn()) {
    let random = RandomScheduler::new_from_seed(SEED, ORDERS);
    Runner::new(random, Config::default()).run(check);
    let by_priority = PctScheduler::new_from_seed(SEED, DEPTH, ORDERS);
    Runner::new(by_priority, Config::default()).run(check);
}

#[test]
fn closed_fence_is_idle_for_good() {
    in_random_orders(checks::closed_fence_is_idle_for_good);
}

#[test]
fn renewal_opens_a_paused_fence_and_no_closed_one() {
    in_random_orders(checks::renewal_opens_a_paused_fence_and_no_closed_one);
}

#[test]
fn each_wanted_key_has_one_watch() {
    in_random_orders(checks::each_wanted_key_has_one_watch);
}
