//! The kubelet stand-in: ties a VM's power to a Node's life.
