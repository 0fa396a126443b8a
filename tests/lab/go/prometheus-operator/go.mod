// The Prometheus Operator's definitions of its kinds, as its own module carries them. No code is built of it.
module haulout.lab/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
