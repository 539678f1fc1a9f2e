// Package deploy holds docker-compose.yml to the program and its
// configuration. No Docker engine takes part: what an image does inside is not
// tested here.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"refundgate/internal/config"
	"refundgate/internal/testenv"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type composeFile struct {
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
}

type service struct {
	Image       string            `yaml:"image"`
	Command     []string          `yaml:"command"`
	Profiles    []string          `yaml:"profiles"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	Ports       []string          `yaml:"ports"`
	Healthcheck map[string]any    `yaml:"healthcheck"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Deploy struct {
		Replicas int `yaml:"replicas"`
	} `yaml:"deploy"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	var compose composeFile
	// To this parser, overriding what a merge key brought is a duplicate.
	require.NoError(t, yaml.UnmarshalWithOptions(readFile(t, "../docker-compose.yml"), &compose, yaml.AllowDuplicateMapKey()))
	return compose
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func TestComposeHasEveryPart(t *testing.T) {
	t.Parallel()
	compose := readCompose(t)
	var names []string
	for name, s := range compose.Services {
		names = append(names, name)
		for dependency, how := range s.DependsOn {
			other, ok := compose.Services[dependency]
			require.True(t, ok, "%s depends on %s, which does not exist", name, dependency)
			require.Contains(t, []string{"service_healthy", "service_completed_successfully"}, how.Condition)
			if how.Condition == "service_healthy" {
				require.NotEmpty(t, other.Healthcheck, "%s waits for the health of %s, which has no check", name, dependency)
			}
		}
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if strings.HasPrefix(source, ".") {
				require.FileExists(t, filepath.Join("..", source), "mounted by %s", name)
			} else {
				require.Contains(t, compose.Volumes, source, "mounted by %s", name)
			}
		}
		for _, port := range s.Ports {
			require.True(t, strings.HasPrefix(port, "127.0.0.1:"), "%s is open to other machines on %s", name, port)
		}
		if s.Image != "refundgate" {
			require.Regexp(t, `:\d+\.\d+`, s.Image, "%s may change under us", name)
		}
	}
	require.ElementsMatch(t, []string{
		"mysql", "temporal-schema", "temporal", "temporal-setup", "temporal-ui",
		"migrate", "serve", "orchestrator", "egress", "egress-standby", "standin",
	}, names)
	require.Equal(t, 2, compose.Services["orchestrator"].Deploy.Replicas)
	require.Equal(t, []string{"sample"}, compose.Services["standin"].Profiles)
	require.Equal(t, compose.Services["egress"].Command, compose.Services["egress-standby"].Command,
		"the lock decides who is the standby, not the command")
}

func TestComposeCommandsExist(t *testing.T) {
	t.Parallel()
	refundgate := testenv.Binary(t)
	for name, s := range readCompose(t).Services {
		if s.Image != "refundgate" {
			continue
		}
		out, err := exec.Command(refundgate, append(s.Command, "--help")...).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		require.Contains(t, string(out), "refundgate "+s.Command[0], name)
	}
}

func TestComposeConfigurationLoads(t *testing.T) {
	t.Parallel()
	compose := readCompose(t)
	for name, s := range compose.Services {
		if s.Environment[config.EnvConfig] == "" {
			continue
		}
		cfg, err := config.Load("refundgate.compose.yaml", func(key string) string { return s.Environment[key] })
		require.NoError(t, err, name)

		require.Contains(t, cfg.MySQL.DSN.Reveal(), "@tcp(mysql:3306)/refundgate")
		require.Equal(t, compose.Services["temporal-setup"].Environment["TEMPORAL_ADDRESS"], cfg.Temporal.Address)
		require.Equal(t, compose.Services["temporal-setup"].Environment["TEMPORAL_NAMESPACE"], cfg.Temporal.Namespace)
		require.Contains(t, compose.Services["temporal-ui"].Ports, strings.TrimPrefix(cfg.Temporal.WebUIURL, "http://")+":8080")
		require.Equal(t, "0.0.0.0:8480", cfg.HTTP.Listen)
		require.Contains(t, compose.Services["serve"].Ports, "127.0.0.1:8480:8480")
		require.Empty(t, cfg.Clients, "a token in this repository would be a token that everybody knows")
		for _, account := range cfg.Accounts {
			key, holdsKey := s.Environment[account.APIKeyEnv]
			sends := strings.HasPrefix(name, "egress")
			require.Equal(t, sends, holdsKey, "only the egress may hold the provider's key: %s, %q", name, key)
		}
	}
}

// Each account's egress queue has a single partition on the server, or its two
// groups would not alternate there.
func TestComposeAccountsHaveFairQueues(t *testing.T) {
	t.Parallel()
	var settings map[string][]struct {
		Value       any `yaml:"value"`
		Constraints struct {
			TaskQueueName string `yaml:"taskQueueName"`
		} `yaml:"constraints"`
	}
	require.NoError(t, yaml.Unmarshal(readFile(t, "temporal/dynamicconfig.yaml"), &settings))
	for _, key := range []string{"matching.useNewMatcher", "matching.enableFairness"} {
		require.Len(t, settings[key], 1)
		require.Equal(t, true, settings[key][0].Value)
		require.Empty(t, settings[key][0].Constraints.TaskQueueName)
	}

	compose := readCompose(t)
	cfg, err := config.Load("refundgate.compose.yaml", func(key string) string { return compose.Services["egress"].Environment[key] })
	require.NoError(t, err)
	require.NotEmpty(t, cfg.Accounts)
	for _, key := range []string{"matching.numTaskqueueReadPartitions", "matching.numTaskqueueWritePartitions"} {
		single := map[string]bool{}
		for _, s := range settings[key] {
			single[s.Constraints.TaskQueueName] = s.Value == uint64(1)
		}
		for _, account := range cfg.Accounts {
			require.True(t, single[refund.EgressQueue(account.Name)], "%s for account %s", key, account.Name)
		}
	}
}

var (
	reference  = regexp.MustCompile(`\$\{([A-Z_]+)([^}]*)\}`)
	secretName = regexp.MustCompile(`PASSWORD|PWD|KEY|TOKEN|SECRET`)
	// secretRef is a secret that compose refuses to start without.
	secretRef = regexp.MustCompile(`^\$\{[A-Z_]+:\?[^}]+\}$`)
)

func TestComposeSecretsComeFromTheEnvironment(t *testing.T) {
	t.Parallel()
	for name, s := range readCompose(t).Services {
		for key, value := range s.Environment {
			if secretName.MatchString(key) {
				require.Regexp(t, secretRef, value, "%s of %s", key, name)
			}
		}
	}

	used := map[string]bool{}
	for _, match := range reference.FindAllSubmatch(readFile(t, "../docker-compose.yml"), -1) {
		used[string(match[1])] = true
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(readFile(t, "../.env.example"))) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			documented[key] = true
			require.Empty(t, value, "%s has a value that everybody knows", key)
		}
	}
	require.Equal(t, used, documented, "docker-compose.yml and .env.example differ")
}
