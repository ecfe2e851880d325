package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSourcesList(t *testing.T) {
	const thirdParty = `deb [arch=amd64 signed-by=/usr/share/keyrings/chrome.gpg] https://dl.google.com/linux/chrome/deb/ stable main
deb https://packages.cloud.google.com/apt cloud-sdk-bookworm main
deb https://download.docker.com/linux/debian bookworm stable
deb-src http://source.example/debian bookworm main
`
	tests := map[string]struct {
		files  map[string]string
		suites []string
		want   string
	}{
		"nothing of Debian": {
			files:  map[string]string{"sources.list": thirdParty},
			suites: []string{"bookworm", "bookworm-security"},
			want: "deb [arch=amd64 signed-by=/k] http://deb.debian.org/debian bookworm main\n" +
				"deb [arch=amd64 signed-by=/k] http://deb.debian.org/debian-security bookworm-security main\n",
		},
		"one-line": {
			files: map[string]string{
				"sources.list": "# deb http://old.example/debian bookworm main\n" + thirdParty +
					"deb [ signed-by=/own.gpg trusted=yes ] http://mirror.example/debian bookworm main contrib # ours\n",
				"sources.list.d/security.list": "deb http://mirror.example/debian-security bookworm-security main\n",
			},
			suites: []string{"sid", "trixie-security"},
			want: "deb [arch=amd64 signed-by=/own.gpg trusted=yes] http://mirror.example/debian sid main\n" +
				"deb [arch=amd64 signed-by=/k] http://mirror.example/debian-security trixie-security main\n",
		},
		"deb822": {
			files: map[string]string{"sources.list.d/debian.sources": `# made by the installer
Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main

Types: deb deb-src
# http://snapshot.debian.org/archive/debian/20250520T000000Z
URIs: http://mirror.example/debian/
 http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBGPL0BUBEADmW5NdOOHwPIJlgPu6JDcKw/NZJPR8lsD3K87ZM18gzyQZJD+w
`},
			suites: []string{"trixie-backports", "bookworm-security"},
			want: "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian/ trixie-backports main\n" +
				"deb [arch=amd64 signed-by=/k] http://mirror.example/debian-security bookworm-security main\n",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range test.files {
				writeFile(t, filepath.Join(dir, file), text)
			}
			machine, err := machineSources(dir)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, sourcesList(machine, test.suites, "/k")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAptConfigDropsHooks(t *testing.T) {
	const machine = `Acquire::http::Proxy "http://proxy.example:3128";
Acquire::Check-Date "false";
Acquire::IndexTargets::deb::DEP-11::MetaKey "dep11";
APT::Update::Post-Invoke-Success:: "touch /etc/owned";
DPkg::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";
Dir::State "var/lib/apt";
`
	got := aptConfig("/cache/apt", machine)
	for _, want := range []string{"Proxy \"http://proxy.example:3128\";\n", "Check-Date \"false\";\n", "Dir::State \"/cache/apt/state\";\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	for _, bad := range []string{"Post-Invoke", "DEP-11", "var/lib/apt"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is taken over from the machine:\n%s", bad, got)
		}
	}
}

func TestAptError(t *testing.T) {
	tests := []struct{ stderr, want string }{
		{"W: GPG error: http://m sid InRelease: no key\nE: The repository 'http://m sid InRelease' is not signed.\n", "x: The repository 'http://m sid InRelease' is not signed."},
		{"W: Failed to fetch http://m/InRelease  Could not resolve 'm'\nW: Some index files failed to download.\n", "x: Failed to fetch http://m/InRelease  Could not resolve 'm'"},
		{"E: Failed to fetch http://m/a.deb  404  Not Found\nE: Unable to fetch some archives, maybe run apt-get update\n", "x: Failed to fetch http://m/a.deb  404  Not Found"},
		{"E: Write error - write (28: No space left on device)\n", "x: no space left on device"},
	}
	for _, test := range tests {
		if got := aptError("x", test.stderr, nil).Error(); got != test.want {
			t.Errorf("aptError says %q, want %q", got, test.want)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
