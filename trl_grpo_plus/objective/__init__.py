"""The way from rewards to the loss: advantages, the KL term, and filler rows. Functions of tensors, most of them pure.

credit               computes the advantages of a batch by the configuration
advantages           rewards minus a baseline, divided by a scale
options              the options of a configuration that advantages depend on
group_batch          the data that a baseline, a scale or an advantage function reads beside the rewards
baselines            the values that are subtracted: `BASELINES`
scales               the values that are divided by: `SCALES`
variants             other advantage functions: `VARIANTS`
advantage_functions  reads and checks `advantage_estimator`
process_rewards      rewards of steps -> advantages of tokens
ratios               importance ratios other than TRL's: `RATIOS`
kl                   KL estimators: `ESTIMATORS`; adaptive beta
loss_inputs          gives TRL's loss another KL estimator or importance ratio
padding              rows that only fill a batch up, and the loss's denominator
"""
