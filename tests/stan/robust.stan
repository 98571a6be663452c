// Student's t with a regularised horseshoe.
data {
  int<lower=0> N;
  int<lower=0> K;
  matrix[N, K] x;
  vector[N] y;
}
transformed data {
  matrix[N, K] centred;
  for (k in 1 : K)
    centred[ : , k] = x[ : , k] - mean(x[ : , k]);
}
parameters {
  real alpha;
  vector[K] z;
  vector<lower=0>[K] lambda;
  real<lower=0> tau;
  real<lower=0> sigma;
  real<lower=1> nu;
}
transformed parameters {
  vector[K] beta = z .* lambda * tau;
}
model {
  alpha ~ normal(0, 2);
  z ~ std_normal();
  lambda ~ student_t(3, 0, 1);
  tau ~ student_t(3, 0, 0.5);
  sigma ~ student_t(3, 0, 1);
  nu ~ gamma(2, 0.1);
  y ~ student_t(nu, alpha + centred * beta, sigma);
}
generated quantities {
  vector[N] log_lik, mean = alpha + centred * beta;
  for (n in 1 : N)
    log_lik[n] = student_t_lpdf(y[n] | nu, mean[n], sigma);
}
