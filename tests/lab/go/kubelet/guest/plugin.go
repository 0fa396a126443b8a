package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin is a device plugin whose devices do nothing.
type plugin struct {
	api.UnimplementedDevicePluginServer
	resource string

	mu sync.Mutex
	// healthy of the most devices so far are offered.
	healthy, most int
	// changed is closed by the next change.
	changed chan struct{}
	server  *grpc.Server
	// registered is the kubelet's socket as it was then.
	registered os.FileInfo
}

func newPlugin(resource string) *plugin {
	return &plugin{resource: resource, changed: make(chan struct{})}
}

func (p *plugin) socket() string { return filepath.Join(pluginFolder, "lab.sock") }

// offer offers so many devices, to a kubelet that was restarted as well. It does
// nothing if that is so already.
func (p *plugin) offer(devices int) error {
	p.mu.Lock()
	if p.healthy != devices {
		p.healthy, p.most = devices, max(p.most, devices)
		close(p.changed)
		p.changed = make(chan struct{})
	}
	known := p.registered
	p.mu.Unlock()
	if devices == 0 && known == nil {
		return nil
	}
	kubelet, err := os.Stat(filepath.Join(pluginFolder, "kubelet.sock"))
	if err != nil {
		// It starts.
		return nil
	}
	// A kubelet that starts removes the sockets of its plugins.
	_, err = os.Stat(p.socket())
	if known != nil && os.SameFile(known, kubelet) && err == nil {
		return nil
	}
	if err := p.register(); err != nil {
		return fmt.Errorf("registering the device plugin: %w", err)
	}
	log.Printf("the device plugin offers %d of %s", devices, p.resource)
	p.mu.Lock()
	p.registered = kubelet
	p.mu.Unlock()
	return nil
}

// register serves on a socket, which a kubelet removes at its start, and tells
// the kubelet.
func (p *plugin) register() error {
	p.stop()
	_ = os.Remove(p.socket())
	listener, err := net.Listen("unix", p.socket())
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
	kubelet, err := grpc.NewClient("unix://"+filepath.Join(pluginFolder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(p.socket()), ResourceName: p.resource,
	})
	if err != nil {
		return err
	}
	// The kubelet may have removed it at its start, between the two steps.
	_, err = os.Stat(p.socket())
	return err
}

func (p *plugin) stop() {
	p.mu.Lock()
	server := p.server
	p.server, p.registered = nil, nil
	p.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// GetDevicePluginOptions implements the API.
func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch implements the API.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		response := &api.ListAndWatchResponse{}
		for i := range p.most {
			health := api.Healthy
			if i >= p.healthy {
				health = api.Unhealthy
			}
			response.Devices = append(response.Devices, &api.Device{ID: "gpu-" + strconv.Itoa(i), Health: health})
		}
		changed := p.changed
		p.mu.Unlock()
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate implements the API.
func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for range r.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return response, nil
}

// pluginInPod offers devices from a pod which has the kubelet's folder.
func pluginInPod(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: guest plugin RESOURCE DEVICES")
	}
	devices, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	p := newPlugin(args[0])
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	for {
		if err := p.offer(devices); err != nil {
			log.Printf("%v", err)
		}
		select {
		case <-end:
			p.stop()
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}
