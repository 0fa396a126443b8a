//! The laws of the decision, held against every combination of phase and facts, and against random stories.

mod enumerate;
mod facts;
mod stories;
