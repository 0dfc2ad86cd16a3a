package config_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// A directory keeps the last good version of each file.
func ExampleDirectory_Load() {
	dir, err := os.MkdirTemp("", "rules")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	directory := config.NewDirectory(config.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})

	good := "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: minute, requests_per_unit: 60}}\n"
	bad := "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: minutes, requests_per_unit: 60}}\n"
	for _, text := range []string{good, bad} {
		if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(text), 0o600); err != nil {
			fmt.Println(err)
			return
		}
		result, err := directory.Load()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(len(result.Tree.Rules), "rule,", result.Files[0].State)
	}
	// Output:
	// 1 rule, loaded
	// 1 rule, stale
}
