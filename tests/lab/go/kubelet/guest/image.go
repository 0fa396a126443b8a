package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// writeImage writes an archive of an image with this program alone, as docker
// saves it.
func writeImage(path, name string) error {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	if err := addFiles(&layer, file{"guest", 0o755, self}); err != nil {
		return err
	}
	sum := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/guest"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	return addFiles(out, file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer.Bytes()}, file{"manifest.json", 0o644, manifest})
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func addFiles(to io.Writer, files ...file) error {
	archive := tar.NewWriter(to)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// exitsAfter is the variable with the milliseconds in which a container ends
// once it is asked to. Without it, it has to be killed.
const exitsAfter = "EXITS_AFTER_MS"

// workload runs until it is asked to end.
func workload() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	log.Printf("running")
	for range signals {
		ms, err := strconv.Atoi(os.Getenv(exitsAfter))
		if err != nil {
			log.Printf("ignoring the request to end")
			continue
		}
		time.Sleep(time.Duration(ms) * time.Millisecond)
		return nil
	}
	return nil
}
