//! Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
