package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// Config is the machine, in a file.
type Config struct {
	// Name is the host name.
	Name string `json:"name"`
	// Dir is the folder of the VM. Its disk is Dir/root.
	Dir string `json:"dir"`
	// Groups is the name of its control groups.
	Groups string `json:"groups"`
	// Kubelet and Containerd are folders with programs.
	Kubelet    string `json:"kubelet"`
	Containerd string `json:"containerd"`
	Runc       string `json:"runc"`
	// Resource is what the device plugin offers.
	Resource string `json:"resource"`
	// Image is the name of the image that all pods run.
	Image string `json:"image"`
	// KubeletArgs are the flags of the kubelet.
	KubeletArgs []string `json:"kubeletArgs"`
	Network     Network  `json:"network"`
}

// Settings is how the guest behaves from now on.
type Settings struct {
	// RunsKubelet is false while the kubelet is stopped, or not yet started.
	RunsKubelet bool `json:"runsKubelet"`
	// GPUs is how many the device plugin offers, and GPUsAfterMs how long after
	// the start of the kubelet it does so first.
	GPUs        int   `json:"gpus"`
	GPUsAfterMs int64 `json:"gpusAfterMs"`
	// Grace is the kubelet's shutdownGracePeriod in seconds, 0 for none.
	Grace int `json:"grace"`
	// SystemUUID is what the firmware says, for a kubelet that starts.
	SystemUUID string `json:"systemUuid"`
	// ShutdownMs is how long the guest takes at least to shut down.
	ShutdownMs int64 `json:"shutdownMs"`
	// LosesCheckpoint is whether the next boot finds no checkpoint of device
	// plugins.
	LosesCheckpoint bool `json:"losesCheckpoint"`
}

// Command is a line on stdin: one of on, off, shutdown and set.
type Command struct {
	Do       string    `json:"do"`
	Settings *Settings `json:"settings,omitempty"`
}

func readConfig(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := new(Config)
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
