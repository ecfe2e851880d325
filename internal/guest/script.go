package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/kernel"
)

// scriptLimit bounds a script's run; scriptMemory holds the userland in the initramfs and again unpacked.
const (
	scriptLimit  = 120 * time.Second
	scriptMemory = 768
)

// RunScript boots a guest of its own with a small Debian userland, runs a bash script in it, by itself, and returns what it printed and its exit code (124 when
// it took longer than two minutes).
func RunScript(ctx context.Context, cfg Config, script []byte, args ...string) (output []byte, exit int, err error) {
	dir, err := kernel.Userland(ctx, kernel.Options{})
	if err != nil {
		return nil, 0, err
	}
	cfg.Memory = max(cfg.Memory, scriptMemory)
	g, err := prepare(cfg, "script", kernel.Tree{Dir: dir})
	if err != nil {
		return nil, 0, err
	}
	defer g.Close()
	if err := g.boot(ctx, bootLimit); err != nil {
		return nil, 0, err
	}
	req, err := json.Marshal(scriptRequest{script, args, scriptLimit})
	if err != nil {
		return nil, 0, err
	}
	b, err := g.call(ctx, frame{kind: kindScript, payload: req}, scriptLimit+callLimit)
	if err != nil {
		return nil, 0, fmt.Errorf("run the script: %w", err)
	}
	var ans scriptAnswer
	if err := json.Unmarshal(b, &ans); err != nil {
		return nil, 0, fmt.Errorf("run the script: %w", err)
	}
	return ans.Output, ans.Exit, nil
}
