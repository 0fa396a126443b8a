//! Stories through the real binary, against a real kube-apiserver and a vCenter that hangs as a real one does.
//!
//! Each says who does what and what must be seen. They run side by side in one cluster, each on a stage of its own.

mod story;

mod basics;
