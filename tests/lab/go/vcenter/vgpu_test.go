package main

import "testing"

func TestGPUsForVGPUs(t *testing.T) {
	offered := []string{"grid_a40-48c", "grid_a40-24c", "grid_a40-8c"}
	for _, c := range []struct {
		count map[string]int
		want  int
	}{
		{map[string]int{"grid_a40-48c": 1}, 1},
		{map[string]int{"grid_a40-48c": 2}, 2},
		{map[string]int{"grid_a40-24c": 2}, 1},
		{map[string]int{"grid_a40-24c": 3}, 2},
		{map[string]int{"grid_a40-8c": 6}, 1},
		// One profile at a time on each GPU.
		{map[string]int{"grid_a40-24c": 1, "grid_a40-8c": 1}, 2},
	} {
		if got := gpusFor(offered, c.count); got != c.want {
			t.Errorf("%v: %d GPUs, want %d", c.count, got, c.want)
		}
	}
}
