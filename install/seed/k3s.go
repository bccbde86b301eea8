package seed

import (
	"strings"

	"github.com/liteboxd/boxlift/install/config"
)

// WithoutSecrets removes these secrets from what a host printed, those of install.yaml, and the password of boxlift's
// registry.
func (sd *Seeder) WithoutSecrets(s string, secrets ...string) string {
	for _, secret := range sd.Site.Config.Secrets() {
		secrets = append(secrets, secret.Reveal())
	}
	if sd.Site.Config.Seeding.Mode == config.SeedRegistry {
		if a, err := sd.authority(); err == nil {
			secrets = append(secrets, a.Password())
		}
	}
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	return s
}
